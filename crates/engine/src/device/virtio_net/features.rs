//! Feature bits of the network device: which are offered, what they are called, what depends on what.

use sidecore_abi::virtio::features as bit;

use crate::device::FeatureTable;
use crate::packet::Offloads;

/// Every feature on offer.
///
/// Not on offer, and why: `HOST_UFO`/`GUEST_UFO` (Linux dropped fragmenting UDP), `CTRL_GUEST_OFFLOADS`,
/// `CTRL_RX`, `CTRL_MAC_ADDR` (over vhost-user the VMM keeps the control queue to itself and tells us
/// nothing), `ACCESS_PLATFORM` (no IOTLB), `RING_RESET`, `NOTIFICATION_DATA`.
const KNOWN: [(&str, u64); 25] = [
    ("csum", bit::NET_CSUM),
    ("guest_csum", bit::NET_GUEST_CSUM),
    ("host_tso4", bit::NET_HOST_TSO4),
    ("host_tso6", bit::NET_HOST_TSO6),
    ("host_ecn", bit::NET_HOST_ECN),
    ("host_uso", bit::NET_HOST_USO),
    ("guest_tso4", bit::NET_GUEST_TSO4),
    ("guest_tso6", bit::NET_GUEST_TSO6),
    ("guest_ecn", bit::NET_GUEST_ECN),
    ("guest_uso4", bit::NET_GUEST_USO4),
    ("guest_uso6", bit::NET_GUEST_USO6),
    ("mrg_rxbuf", bit::NET_MRG_RXBUF),
    ("mtu", bit::NET_MTU),
    ("mac", bit::NET_MAC),
    ("speed_duplex", bit::NET_SPEED_DUPLEX),
    // The next four are the VMM's to carry out; VMMs show them to the guest only if we offer them.
    ("status", bit::NET_STATUS),
    ("ctrl_vq", bit::NET_CTRL_VQ),
    ("guest_announce", bit::NET_GUEST_ANNOUNCE),
    ("mq", bit::NET_MQ),
    ("indirect", bit::INDIRECT_DESC),
    ("event_idx", bit::EVENT_IDX),
    ("version_1", bit::VERSION_1),
    ("packed", bit::RING_PACKED),
    ("in_order", bit::IN_ORDER),
    ("order_platform", bit::ORDER_PLATFORM),
];
const OFFERED: FeatureTable = FeatureTable { kind: "virtio-net", known: &KNOWN };

/// Features that are worth nothing without another (virtio 1.2 §5.1.3.1), in an order in which one pass
/// settles all.
const NEEDS: [(u64, u64); 12] = [
    (bit::NET_HOST_TSO4, bit::NET_CSUM),
    (bit::NET_HOST_TSO6, bit::NET_CSUM),
    (bit::NET_HOST_USO, bit::NET_CSUM),
    (bit::NET_HOST_ECN, bit::NET_HOST_TSO4 | bit::NET_HOST_TSO6),
    (bit::NET_GUEST_TSO4, bit::NET_GUEST_CSUM),
    (bit::NET_GUEST_TSO6, bit::NET_GUEST_CSUM),
    (bit::NET_GUEST_USO4, bit::NET_GUEST_CSUM),
    (bit::NET_GUEST_USO6, bit::NET_GUEST_CSUM),
    (bit::NET_GUEST_ECN, bit::NET_GUEST_TSO4 | bit::NET_GUEST_TSO6),
    (bit::NET_GUEST_ANNOUNCE, bit::NET_CTRL_VQ),
    (bit::NET_MQ, bit::NET_CTRL_VQ),
    (bit::NET_SPEED_DUPLEX, bit::NET_STATUS),
];

/// The word of features on offer without those named in `off`, and without what depends on them.
///
/// # Errors
/// A name that is not in the table.
pub fn offered(off: &[String]) -> Result<u64, String> {
    let mut word = OFFERED.without(off)?;
    for (feature, needs) in NEEDS {
        if word & needs == 0 {
            word &= !feature;
        }
    }
    Ok(word)
}

/// The names of those of `word` that are in the table.
pub fn names(word: u64) -> Vec<String> {
    OFFERED.names(word)
}

/// Offloads, with the features by which the guest may ask them of us, and by which it takes them (virtio 1.2
/// §5.1.3: HOST_*, GUEST_*).
const OFFLOADS: [(u64, u64, Offloads); 7] = [
    (bit::NET_CSUM, bit::NET_GUEST_CSUM, Offloads::CSUM),
    (bit::NET_HOST_TSO4, bit::NET_GUEST_TSO4, Offloads::TSO4),
    (bit::NET_HOST_TSO6, bit::NET_GUEST_TSO6, Offloads::TSO6),
    (bit::NET_HOST_ECN, bit::NET_GUEST_ECN, Offloads::ECN),
    (bit::NET_HOST_UFO, bit::NET_GUEST_UFO, Offloads::UFO),
    (bit::NET_HOST_USO, bit::NET_GUEST_USO4, Offloads::USO4),
    (bit::NET_HOST_USO, bit::NET_GUEST_USO6, Offloads::USO6),
];

/// What the guest may ask of us under these features.
pub fn host_offloads(features: u64) -> Offloads {
    let has = |(host, ..): &&(u64, u64, Offloads)| features & host != 0;
    OFFLOADS.iter().filter(has).fold(Offloads::NONE, |all, (.., offload)| all | *offload)
}

/// What the guest takes from us under these features.
pub fn guest_offloads(features: u64) -> Offloads {
    let has = |(_, guest, _): &&(u64, u64, Offloads)| features & guest != 0;
    OFFLOADS.iter().filter(has).fold(Offloads::NONE, |all, (.., offload)| all | *offload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switching_one_off_takes_its_dependents_along() {
        let all = offered(&[]).unwrap();
        assert_eq!(all.count_ones() as usize, KNOWN.len());
        let plain = offered(&["csum".into(), "guest_csum".into()]).unwrap();
        let gone = bit::NET_HOST_TSO4 | bit::NET_HOST_USO | bit::NET_HOST_ECN | bit::NET_GUEST_TSO6;
        assert_eq!(plain & gone, 0);
        assert_eq!(guest_offloads(plain), Offloads::NONE);
        assert!(!names(plain).contains(&"guest_ecn".to_owned()));
        let one = offered(&["host_tso4".into()]).unwrap();
        assert_ne!(one & bit::NET_HOST_ECN, 0, "TSO6 still carries ECN");
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known() {
        let error = offered(&["tso".into()]).unwrap_err();
        assert!(error.contains("\"tso\"") && error.contains("host_tso4"));
    }
}
