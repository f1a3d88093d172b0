//! Why a port carries no frames, or fewer than it should: each cause by name, with the command that fixes it.
//!
//! Everything here follows from the state that `show` knows. `sidecore doctor` adds facts that only the host
//! knows (which users may open a socket), because it runs with its user's rights and not with the daemon's.

use sidecore_abi::counters::DROPS;

use super::flow::FlowView;
use super::spec::PortSpec;
use crate::port::{AttachmentStatus, Fault, Lack, Peer, Port};

crate::util::form::view! {
    /// Why a port carries no frames, or fewer than it should.
    #[derive(Default)]
    Diagnosis {
        /// Name of the cause: a name of its own, a drop reason or a fault.
        name: String,
        /// The part of the port that it is about.
        about: String = ["peer", "memory", "driver", "link", "mtu", "frames"],
        /// True: something must be fixed. False: usual, for example a port without traffic.
        wrong: bool,
        /// The finding.
        text: String,
        /// The command that fixes it.
        mend?: String,
    }
}

/// Drops that are older say nothing about now.
pub const RECENT_MS: u64 = 10_000;

const SHARE: &str = "QEMU: -object memory-backend-memfd,id=mem,size=…,share=on -machine memory-backend=mem; Cloud Hypervisor: \
                     --memory shared=on";

/// What is known of a port.
pub(super) struct Facts<'f> {
    pub spec: &'f PortSpec,
    pub port: &'f Port,
    /// Absent: it could not be started.
    pub status: Option<&'f AttachmentStatus>,
    pub stopped: Option<&'f str>,
    /// What it and another port do with one address.
    pub report: Option<&'f str>,
    pub flow: &'f FlowView,
}

/// All that is known to be in the way of its frames, what comes first first.
pub(super) fn diagnose(facts: &Facts) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    let mut say = |wrong: bool, about: &str, name: &str, text: String, mend: Option<String>| {
        found.push(Diagnosis { name: name.to_owned(), about: about.to_owned(), wrong, text, mend });
    };
    let Facts { spec, port, status, stopped, report, flow } = facts;
    let name = &spec.name;
    if let Some(why) = stopped {
        say(true, "peer", "stopped", format!("it could not be started: {why}"), None);
    }
    let fault = port.fault.get();
    // A device that finds no memory where its VMM has shared none has no fault of its own.
    let unshared = status.is_some_and(|status| status.lack == Some(Lack::Memory));
    if let Some(fault) = fault.filter(|_| !unshared) {
        say(true, "peer", &fault.name(), fault.to_string(), fault_advice(fault, spec));
    }
    if !spec.link_wanted() {
        let text = "link is down because it was set so".to_owned();
        say(true, "link", "link_set_down", text, Some(format!("sidecore set {name} link=up")));
    } else if let Some(status) = status {
        if fault.is_none() || unshared {
            of_peer(status, spec, port, &mut say);
        }
        if let Some(ago) = port.messages.since_second() {
            let text = format!("a second VMM has called and was refused, the last {} s ago", ago.as_secs());
            let mend = Some("give each VMM a port of its own: sidecore add …".to_owned());
            // Its user sees it end, and then looks here.
            say(ago.as_secs() < 60, "peer", "second_vmm", text, mend);
        }
        if let (false, Some(line)) = (port.carrier(), spec.line()) {
            let text = format!("the other end of {line} has no peer");
            say(true, "link", "wire_down", text, Some("sidecore show ports".to_owned()));
        }
    }
    if let Some(report) = report {
        say(true, "frames", "address_twice", (*report).to_owned(), None);
    }
    for (reason, ago) in flow.last_drop_ms.iter().filter(|(_, ago)| **ago <= RECENT_MS) {
        let meaning = DROPS.iter().find(|(_, name, _)| name == reason).map_or("", |row| row.2);
        let (wrong, about, mend) = drop_advice(reason, name, port.mtu());
        let text = format!("{reason}: frames were dropped, the last {} s ago: {meaning}", ago / 1_000);
        say(wrong, about, reason, text, mend);
    }
    found
}

/// What the VMM or the guest has not done yet.
fn of_peer(
    status: &AttachmentStatus,
    spec: &PortSpec,
    port: &Port,
    say: &mut impl FnMut(bool, &str, &str, String, Option<String>),
) {
    if status.lack != Some(Lack::Memory) && port.memory_seems_private() {
        let text = "the guest's memory looks private: its driver has started, and the daemon reads nothing but zeros";
        say(true, "memory", "private_memory", text.to_owned(), Some(SHARE.to_owned()));
    }
    match status.lack {
        Some(Lack::Vmm) if status.peer == Peer::Waiting => {
            let once = !matches!(&*spec.kind, "vhost-user" | "blk") && port.messages.count().connections > 0;
            let mend = once.then(|| "restart the VM: it does not connect to a card again".to_owned());
            say(false, "peer", "no_vmm", format!("no VMM is connected: {}", status.detail), mend);
        }
        Some(Lack::Kind) => {
            let text = format!("its VMM has a network card here, and this socket is for kind {}", spec.kind);
            say(true, "peer", &Fault::WrongClient.name(), text, fault_advice(Fault::WrongClient, spec));
        }
        Some(Lack::Memory) => {
            let text = "the VMM shares no memory: no frame can reach the guest or come from it".to_owned();
            say(true, "memory", "no_memory", text, Some(SHARE.to_owned()));
        }
        Some(Lack::Driver) => {
            let text = "the VMM is connected, and no driver in the guest has turned the card on".to_owned();
            let module = guest_side(&spec.kind).0;
            let mend = format!("in the guest: lspci -k (bound?), modprobe {module}, ip link set DEV up");
            say(true, "driver", "no_driver", text, Some(mend));
        }
        _ if status.peer == Peer::Faulted => {
            say(true, "peer", "faulted", format!("its VMM was disconnected: {}", status.detail), None);
        }
        _ if status.peer == Peer::Waiting => say(false, "peer", "waiting", status.detail.clone(), None),
        _ => {}
    }
    let refused = status.queues.iter().filter(|queue| queue.state.contains("is not inside"));
    for queue in refused {
        let text = format!("{} queue {} cannot run: {}", queue.direction, queue.index, queue.state);
        say(true, "driver", "ring_refused", text, None);
    }
}

/// The driver of a guest's device at a port of `kind`, as Linux calls it, and the device as QEMU does.
fn guest_side(kind: &str) -> (&str, &str) {
    match kind {
        "vhost-user" => ("virtio_net", "virtio-net-pci with -netdev vhost-user"),
        "blk" => ("virtio_blk", "vhost-user-blk-pci"),
        "rtl8169" => ("r8169", "vfio-user-pci"),
        card => (card, "vfio-user-pci"),
    }
}

/// What to do about `fault` of the port that `spec` describes.
fn fault_advice(fault: Fault, spec: &PortSpec) -> Option<String> {
    let mend = fault.mend().replace("KIND", &spec.kind).replace("DEVICE", guest_side(&spec.kind).1);
    let mend = mend.replace("MEMORY", SHARE).replace("PORT", &spec.name);
    Some(mend).filter(|mend| !mend.is_empty())
}

/// What drops for `reason` at port `name` mean for it: whether something is wrong, what it is about, what to
/// do.
fn drop_advice(reason: &str, name: &str, mtu: u32) -> (bool, &'static str, Option<String>) {
    let (wrong, about, mend) = match reason {
        "too_long" => (true, "mtu", "sidecore set PORT mtu=9000, or in the guest: ip link set DEV mtu MTU"),
        "buffer_too_small" => (true, "mtu", "in the guest: ip link set DEV mtu …, as large as the senders'"),
        "ring_full" => {
            let mend = "in the guest: ip link set DEV up; if the interface is up, the VM is paused or too slow: longer \
                        rings (QEMU: rx_queue_size=1024), more queues";
            (true, "driver", mend)
        }
        "queue_full" => (true, "driver", "sidecore set PORT queue=…; the guest is too slow for its queue"),
        "overrun" | "receiver_busy" => (true, "memory", Fault::MemoryStalled.mend()),
        "mac_limit" => (true, "frames", "sidecore set PORT mac-limit=…"),
        "mac_guard" => (true, "frames", "sidecore set PORT mac-guard=off, or mac=… with the guest's address"),
        "storm_broadcast" => (true, "frames", "sidecore set PORT storm-broadcast=…"),
        "storm_multicast" => (true, "frames", "sidecore set PORT storm-multicast=…"),
        "storm_unicast" => (true, "frames", "sidecore set PORT storm-unicast=…"),
        "vlan" => (true, "frames", "sidecore set PORT vlan=…, or trunk=…"),
        "ip_guard" => (false, "frames", "sidecore set PORT allow-ip=…"),
        "dhcp_guard" => (false, "frames", "sidecore set PORT dhcp-guard=off"),
        "ra_guard" => (false, "frames", "sidecore set PORT ra-guard=off"),
        "vxlan_peer" => (true, "frames", "sidecore set PORT peers=…"),
        "vxlan_vni" => (true, "frames", "the other hosts' vni, or a port here that has it"),
        "vxlan_header" => (false, "frames", "another program sends to the UDP port of the tunnel"),
        "vxlan_ecn" => (false, "frames", "more bandwidth between the hosts, or ECN in the guests"),
        "acl" => (false, "frames", "sidecore show acl"),
        "rate" => (false, "frames", "sidecore set PORT out-rate=…, or out-bit-rate=…"),
        "isolated" => (false, "frames", "sidecore set PORT isolated=off"),
        "no_destination" | "hairpin" | "filtered" | "control_frame" | "to_router" | "fragmented"
        | "time_exceeded" => (false, "frames", ""),
        "not_taken" => (false, "frames", "thrown away; programs get them by control=NAMESPACE of the router"),
        "group_address" => (false, "frames", "thrown away; join the stations that want them by one switch"),
        "spoofed" => (true, "frames", "use an address of its port's network (docs/troubleshooting.md)"),
        "no_neighbour" => (false, "frames", "sidecore show neighbours"),
        "reverse_path" => (true, "frames", "sidecore explain ROUTER SOURCE; sidecore set PORT rpf=off"),
        "no_route" => (true, "frames", "sidecore explain ROUTER ADDRESS"),
        "link_down" => (false, "frames", "sidecore show ports: which port's peer is not running?"),
        _ => (true, "frames", "docs/troubleshooting.md"),
    };
    let mend = mend.replace("PORT", name).replace("MTU", &mtu.to_string());
    (wrong, about, Some(mend).filter(|mend| !mend.is_empty()))
}

/// Tells of memory that cannot be reached, once each time: a line in the log for operators who do not look at
/// `show`.
#[derive(Debug, Default)]
pub(super) struct MemoryWatch {
    seconds: u8,
}

/// Seconds for which it must have been so: between two messages of a VMM it is so, too.
const STANDS: u8 = 2;

impl MemoryWatch {
    /// A second later: whether it is to be told now that memory cannot be reached.
    pub fn look(&mut self, unreached: bool) -> bool {
        self.seconds = if unreached { self.seconds.saturating_add(1).min(STANDS + 1) } else { 0 };
        self.seconds == STANDS
    }
}

/// Writes that line for port `name`.
pub(super) fn log_memory(name: &str, private: bool) {
    let what = match private {
        true => "looks private: its driver has started, and the daemon reads nothing but zeros",
        false => "is not shared with us",
    };
    tracing::warn!(event = "fault", port = %name, "the guest's memory {what}; the port will carry nothing. {SHARE}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_has_advice_or_is_usual() {
        let of_routers = ["to_router", "fragmented", "time_exceeded"];
        let usual = [&["no_destination", "hairpin", "filtered", "control_frame"][..], &of_routers].concat();
        for (_, reason, _) in DROPS {
            let (wrong, _, mend) = drop_advice(reason, "p", 1500);
            assert_eq!((wrong, mend.is_some()).1, !usual.contains(&reason), "{reason}: {wrong}");
        }
        let page = include_str!("../../../../docs/troubleshooting.md");
        for (_, reason, meaning) in DROPS {
            assert!(page.contains(&format!("\n| `{reason}` | {meaning} | ")), "{reason}: {meaning}");
        }
        assert_eq!(drop_advice("mac_limit", "p", 1500).2.as_deref(), Some("sidecore set p mac-limit=…"));
    }

    #[test]
    fn memory_is_told_of_once_and_again_after_it_was_there() {
        let mut watch = MemoryWatch::default();
        let mut look = |unreached| watch.look(unreached);
        assert_eq!([look(true), look(false), look(true)], [false; 3]);
        assert_eq!([look(true), look(true), look(true)], [true, false, false]);
        assert_eq!([look(false), look(true), look(true)], [false, false, true]);
    }
}
