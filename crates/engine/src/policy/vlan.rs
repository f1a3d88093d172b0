//! The VLANs of a port (IEEE 802.1Q-2022 §6.9, §8.6, §8.8).
//!
//! Theory of operation. A frame that comes in by a port with VLANs gets one: that of its tag, if the port
//! carries it; the port's own, if it has no tag or one of VLAN 0, which only tells its priority; else it is
//! dropped. From then on its VLAN is known beside the frame ([`BatchVlans`]), whose bytes stay as they came.
//! Addresses are learned and looked up by VLAN, and a flood goes to ports that carry it. Where the frame goes
//! out, the receiver's port says whether it is to have a tag ([`PortVlans::form`]). Between two access ports
//! nothing is changed; between access port and trunk the graph makes another description of the frame, and
//! the body is not copied for it (`graph/vlan.rs`).
//!
//! A port without VLANs is in none, number 0, with all others of its switch that have none. Tags are payload
//! to it.
//!
//! A tag is one of the port's protocol. With 802.1ad the tags of 802.1Q inside are payload: a provider's
//! bridge (§15).
//!
//! Payload may begin with a further tag, which is the sender's. A frame that would leave a port without a tag
//! of its VLAN, and whose payload begins with a tag of that port's protocol, does not leave: whoever is there
//! would take it for one of another VLAN, whose name the sender chose.

use crate::packet::{Batch, Frame, MAX_BATCH};
use crate::port::DropReason;

/// The largest number of a VLAN (§9.6: 4095 is reserved).
pub const MAX_VLAN: u16 = 4094;
/// Bits of a VLAN's number in a tag.
const NUMBER: u16 = 0xfff;
/// Bytes of an Ethernet header with a tag.
const TAGGED_HEADER: u32 = 18;

/// By which number a tag is known: its EtherType.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TagProtocol {
    /// The customer's, 0x8100.
    #[default]
    Customer,
    /// The provider's, 0x88a8.
    Service,
}

impl TagProtocol {
    /// As a tag begins with it.
    #[inline]
    pub fn bytes(self) -> [u8; 2] {
        match self {
            TagProtocol::Customer => [0x81, 0x00],
            TagProtocol::Service => [0x88, 0xa8],
        }
    }
}

/// A set of VLANs: a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Those of these ranges, both ends included.
    pub fn new(ranges: impl IntoIterator<Item = (u16, u16)>) -> VlanSet {
        let mut set = Box::new([0u64; 64]);
        for number in ranges.into_iter().flat_map(|(first, last)| first..=last.min(MAX_VLAN)) {
            set[usize::from(number / 64)] |= 1 << (number % 64);
        }
        VlanSet(set)
    }

    /// Whether `number` is in it.
    pub fn has(&self, number: u16) -> bool {
        self.0[usize::from(number / 64 % 64)] >> (number % 64) & 1 != 0
    }

    fn meets(&self, other: &VlanSet) -> bool {
        self.0.iter().zip(other.0.iter()).any(|(a, b)| a & b != 0)
    }
}

/// What a frame looks like on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Without a tag of its VLAN.
    Untagged,
    /// With one.
    Tagged(TagProtocol),
}

/// The VLANs that a port carries: one without tags, any number with tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortVlans {
    /// The VLAN of frames without a tag; 0: they are dropped.
    pub own: u16,
    tagged: Option<VlanSet>,
    protocol: TagProtocol,
}

impl PortVlans {
    /// A port whose frames without a tag are those of VLAN `own` (0: there are none), and which carries
    /// `tagged` with tags of `protocol`.
    pub fn new(own: u16, tagged: Option<VlanSet>, protocol: TagProtocol) -> PortVlans {
        PortVlans { own, tagged, protocol }
    }

    /// Whether it carries VLAN `number`.
    pub fn carries(&self, number: u16) -> bool {
        number != 0 && (number == self.own || self.tagged.as_ref().is_some_and(|set| set.has(number)))
    }

    /// What a frame of VLAN `of` looks like on it; `None`: it does not carry the VLAN, or without a tag of
    /// its own the frame would be taken for one of another VLAN.
    #[inline]
    pub fn form(&self, of: InVlan) -> Option<Form> {
        let number = of.number();
        match number == self.own {
            true if number != 0 => (of.payload() != Some(self.protocol)).then_some(Form::Untagged),
            _ => self.carries(number).then_some(Form::Tagged(self.protocol)),
        }
    }

    /// Whether there is a VLAN that both ports carry, where a port without VLANs is in one of its own.
    pub fn meet(one: Option<&PortVlans>, other: Option<&PortVlans>) -> bool {
        let (Some(one), Some(other)) = (one, other) else { return one.is_none() && other.is_none() };
        let both = |a: &PortVlans, b: &PortVlans| b.carries(a.own);
        let sets = one.tagged.as_ref().zip(other.tagged.as_ref());
        both(one, other) || both(other, one) || sets.is_some_and(|(a, b)| a.meets(b))
    }

    /// The VLAN of a frame that comes in by it; `None`: it carries no such frames.
    #[inline]
    fn admit(&self, frame: &Frame) -> Option<InVlan> {
        let [.., a, b, c, d, e, f] = *frame.head.first_chunk::<18>()?;
        // Tags of both protocols begin with a larger byte than most other types: the most frequent frames.
        if a < 0x80 {
            return (self.own != 0).then_some(InVlan(self.own));
        }
        if [a, b] != self.protocol.bytes() {
            return (self.own != 0).then_some(InVlan(self.own | payload(frame, [a, b], TAGGED_HEADER)));
        }
        let payload = payload(frame, [e, f], TAGGED_HEADER + 4);
        match u16::from_be_bytes([c, d]) & NUMBER {
            _ if frame.len < TAGGED_HEADER => None,
            0 => (self.own != 0).then_some(InVlan(self.own | TAG | PRIORITY | payload)),
            number => self.carries(number).then_some(InVlan(number | TAG | payload)),
        }
    }
}

/// How it is noted that what follows a frame's VLAN, or its addresses, begins with tag `bytes`: a whole one,
/// of a frame that has `whole` bytes.
#[inline]
fn payload(frame: &Frame, bytes: [u8; 2], whole: u32) -> u16 {
    match bytes {
        _ if frame.len < whole => 0,
        [0x81, 0x00] => CUSTOMER,
        [0x88, 0xa8] => SERVICE,
        _ => 0,
    }
}

const TAG: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 13;
/// The payload begins with a tag of the one or the other protocol.
const CUSTOMER: u16 = 1 << 14;
const SERVICE: u16 = 1 << 15;
const REFUSED: InVlan = InVlan(u16::MAX);

/// The VLAN of a frame, and whether it has a tag that says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InVlan(u16);

impl InVlan {
    /// The VLAN's number; 0: none.
    pub fn number(self) -> u16 {
        self.0 & NUMBER
    }

    /// Whether the frame's first tag is of this VLAN, or only tells its priority.
    pub fn has_tag(self) -> bool {
        self.0 & TAG != 0
    }

    /// The protocol of the tag with which the frame's payload begins, if it does.
    #[inline]
    fn payload(self) -> Option<TagProtocol> {
        match self.0 & (CUSTOMER | SERVICE) {
            CUSTOMER => Some(TagProtocol::Customer),
            SERVICE => Some(TagProtocol::Service),
            _ => None,
        }
    }

    /// Whether a frame of its sort, whose tag is of `protocol`, has `form`.
    #[inline]
    pub fn is(self, protocol: TagProtocol, form: Form) -> bool {
        match form {
            Form::Untagged => !self.has_tag(),
            Form::Tagged(wanted) => self.0 & (TAG | PRIORITY) == TAG && wanted == protocol,
        }
    }
}

/// The VLANs of the frames of one batch.
pub struct BatchVlans {
    of: [InVlan; MAX_BATCH],
    /// There are any.
    on: bool,
    /// All frames are of one sort.
    alike: bool,
    /// The port does not carry some frame's.
    refused: bool,
    /// The tags of the port by which they came.
    pub protocol: TagProtocol,
}

impl Default for BatchVlans {
    fn default() -> BatchVlans {
        BatchVlans {
            of: [InVlan(0); MAX_BATCH],
            on: false,
            alike: true,
            refused: false,
            protocol: TagProtocol::Customer,
        }
    }
}

impl BatchVlans {
    /// Finds those of the frames of `batch`, which came by a port that carries `vlans`.
    #[inline]
    pub fn find(&mut self, batch: &Batch, vlans: Option<&PortVlans>) {
        (self.on, self.alike, self.refused) = (vlans.is_some(), true, false);
        let Some(vlans) = vlans else { return };
        self.protocol = vlans.protocol;
        let (mut first, mut differ) = (None, 0);
        for (frame, of) in batch.frames().iter().zip(&mut self.of) {
            *of = vlans.admit(frame).unwrap_or(REFUSED);
            self.refused |= *of == REFUSED;
            differ |= of.0 ^ first.get_or_insert(*of).0;
        }
        self.alike = differ == 0;
    }

    /// Whether frames have VLANs.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether all frames are of one VLAN and look alike.
    pub fn are_alike(&self) -> bool {
        self.alike || !self.on
    }

    /// For what is not a switch: frames have no VLANs. Returns whether they had.
    pub fn set_on(&mut self, on: bool) -> bool {
        std::mem::replace(&mut self.on, on)
    }

    /// The VLAN of frame `pick`.
    #[inline]
    pub fn of(&self, pick: u16) -> InVlan {
        match self.on {
            true => self.of[usize::from(pick) % MAX_BATCH],
            false => InVlan(0),
        }
    }

    /// What stands above an address of frame `index` in a MAC table: its VLAN.
    pub fn key(&self, index: usize) -> u64 {
        u64::from(self.of[index % MAX_BATCH].number()) << 48
    }

    /// Whether the port by which the frames came does not carry the VLAN of some of them.
    pub fn any_refused(&self) -> bool {
        self.on && self.refused
    }

    /// Whether the port by which frame `pick` came carries its VLAN.
    ///
    /// # Errors
    /// It does not.
    pub fn admits(&self, pick: u16) -> Result<(), DropReason> {
        match self.on && self.of[usize::from(pick) % MAX_BATCH] == REFUSED {
            true => Err(DropReason::Vlan),
            false => Ok(()),
        }
    }

    /// Those of frames `picks`, as of a batch of these alone.
    pub fn only(&self, picks: &[u16]) -> BatchVlans {
        let mut only =
            BatchVlans { on: self.on, protocol: self.protocol, alike: false, ..BatchVlans::default() };
        only.of.iter_mut().zip(picks).for_each(|(of, pick)| *of = self.of(*pick));
        only
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with these bytes behind its addresses.
    fn frame(rest: &[u8]) -> Batch {
        let mut bytes = vec![2; 12];
        bytes.extend_from_slice(rest);
        let mut batch = Batch::new();
        assert!(batch.push_short(&bytes));
        batch
    }

    fn came(vlans: &PortVlans, rest: &[u8]) -> Option<(u16, bool)> {
        let mut of = BatchVlans::default();
        of.find(&frame(rest), Some(vlans));
        of.admits(0).ok().map(|()| (u16::try_from(of.key(0) >> 48).unwrap(), of.of(0).has_tag()))
    }

    #[test]
    fn a_frame_is_in_the_vlan_of_its_tag_or_of_its_port() {
        let access = PortVlans::new(10, None, TagProtocol::Customer);
        let trunk =
            PortVlans::new(0, Some(VlanSet::new([(10, 10), (20, 30), (4094, 9000)])), TagProtocol::Customer);
        let native = PortVlans { own: 7, ..trunk.clone() };
        let provider = PortVlans { protocol: TagProtocol::Service, ..access.clone() };
        let all = |rest: &[u8]| [&access, &trunk, &native, &provider].map(|vlans| came(vlans, rest));
        assert_eq!(all(&[8, 0, 1, 1, 1, 1]), [Some((10, false)), None, Some((7, false)), Some((10, false))]);
        let tagged = |tci: u16| all(&[&[0x81, 0][..], &tci.to_be_bytes(), &[8, 0]].concat());
        // What a port's protocol does not know is payload.
        let inner = Some((10, false));
        assert_eq!(tagged(0xe00a), [Some((10, true)), Some((10, true)), Some((10, true)), inner]);
        assert_eq!(tagged(30), [None, Some((30, true)), Some((30, true)), inner]);
        assert_eq!(tagged(31), [None, None, None, inner]);
        assert_eq!(tagged(7), [None, None, Some((7, true)), inner]);
        assert_eq!(tagged(0xa000), [Some((10, true)), None, Some((7, true)), inner], "a priority");
        assert_eq!(tagged(4095), [None, None, None, inner]);
        // A tag without a type behind it.
        assert_eq!(all(&[0x81, 0, 0, 10]), [None, None, None, inner]);
        assert_eq!(came(&provider, &[0x88, 0xa8, 0, 10, 0x81, 0]), Some((10, true)));
    }

    #[test]
    fn ports_meet_in_vlans_that_both_carry() {
        let port = |own, ranges: &[(u16, u16)]| {
            let set = (!ranges.is_empty()).then(|| VlanSet::new(ranges.iter().copied()));
            Some(PortVlans::new(own, set, TagProtocol::Customer))
        };
        let meet = |a: &Option<PortVlans>, b: &Option<PortVlans>| {
            let met = PortVlans::meet(a.as_ref(), b.as_ref());
            assert_eq!(met, PortVlans::meet(b.as_ref(), a.as_ref()));
            met
        };
        let (ten, trunk) = (port(10, &[]), port(0, &[(10, 20)]));
        assert!(meet(&None, &None) && meet(&ten, &ten) && meet(&ten, &trunk));
        assert!(meet(&port(9, &[(30, 40)]), &port(0, &[(9, 9)])) && meet(&port(0, &[(20, 20)]), &trunk));
        assert!(!meet(&None, &ten) && !meet(&port(11, &[]), &ten) && !meet(&port(9, &[]), &trunk));
        assert!(!meet(&port(0, &[(30, 40)]), &trunk), "both without a VLAN of their own");
    }

    #[test]
    fn a_receiver_says_what_frames_look_like() {
        let trunk = PortVlans::new(7, Some(VlanSet::new([(7, 9)])), TagProtocol::Service);
        let form = [0, 6, 7, 8].map(|number| trunk.form(InVlan(number)));
        assert_eq!(form, [None, None, Some(Form::Untagged), Some(Form::Tagged(TagProtocol::Service))]);
        // What would be taken for a frame of the VLAN that its payload names does not leave without a tag.
        let [own, tagged] =
            [7, 8].map(|number| [SERVICE, CUSTOMER].map(|of| trunk.form(InVlan(number | of))));
        assert_eq!(own, [None, Some(Form::Untagged)]);
        assert_eq!(tagged, [Some(Form::Tagged(TagProtocol::Service)); 2]);
        let (customer, service) = (TagProtocol::Customer, TagProtocol::Service);
        let [plain, tagged, priority] = [8, 8 | TAG, 8 | TAG | PRIORITY].map(InVlan);
        assert!(plain.is(customer, Form::Untagged) && !plain.is(service, Form::Tagged(service)));
        assert!(tagged.is(service, Form::Tagged(service)) && !tagged.is(customer, Form::Tagged(service)));
        assert!(!priority.is(customer, Form::Untagged) && !priority.is(customer, Form::Tagged(customer)));
    }
}
