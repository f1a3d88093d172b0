//! Where everything is in a region, computed once from what was asked for.
//!
//! ```text
//! 0            interface pool: the port's netmap_if, those of each pipe's two ends, and room for SPARE more like the
//!              first, which clients make for descriptors that have not all rings
//! ring_pool    one ring object for each ring: the client's TX rings, its RX rings, and four for each pipe
//!              (where the client sends on none, one more, which leads nowhere: netmap's monitors have one to look at)
//! buf_pool     buffers 0 and 1, which have no owner; those of the rings in ring order; the extra ones; those of
//!              the pipes, one set for each direction
//!              64 bytes of slack: netmap's packet copy may run over by 63 bytes
//!              Where ports share a memory, each pool has one port's part after the other's.
//! memsize ...  end of what a netmap program maps
//! words        one block of words for each ring, in the order of the ring pool
//! total        end of the file
//! ```

use std::fmt::Display;
use std::io;

use sidecore_abi::netmap::{If, RingHead, Slot, RESERVED_BUFS};
use sidecore_abi::ring::{End, Info, RingStatus, BUF_SIZES, MAX_PIPES, MAX_RINGS, MAX_SLOTS};

/// What can be chosen about the rings of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Rings of each direction, 1 to [`MAX_RINGS`].
    pub rings: usize,
    /// Slots of each ring, 2 to [`MAX_SLOTS`]; one always stays empty.
    pub slots: u32,
    /// Bytes of a buffer, 64 to 65536, a multiple of 64.
    pub buf_size: u32,
    /// Buffers beyond those of the rings, for the client's own use.
    pub extra_bufs: u32,
    /// Pipes for which there is room. What they do not use takes no memory.
    pub pipes: usize,
    /// Host rings of each direction, beyond `rings`; with them they are [`MAX_RINGS`] at most.
    pub host_rings: usize,
    /// Whether there are rings to send on: a monitor has none.
    pub sends: bool,
}

impl Default for Geometry {
    fn default() -> Self {
        // As VALE's ephemeral ports.
        Geometry {
            rings: 1,
            slots: 1024,
            buf_size: 2048,
            extra_bufs: 0,
            pipes: 4,
            host_rings: 0,
            sends: true,
        }
    }
}

const _: () = assert!(*BUF_SIZES.start() == 64 && *BUF_SIZES.end() == 65_536);
/// Most extra buffers: as many as netmap has buffers by default.
pub const MAX_EXTRA: u32 = 163_840;
/// Bytes behind the last buffer.
const SLACK: u64 = 64;
const PAGE: u64 = 4096;
/// Interfaces for which there is room beyond those that are written here.
const SPARE: u64 = 32;
/// Bytes of the `netmap_if` of a pipe's end, which has one ring of each direction and mentions two host
/// rings.
const PIPE_IF: u64 = (size_of::<If>() + 4 * 8).next_multiple_of(128) as u64;

/// Refuses what rings cannot be made with.
fn within(fits: bool, key: &str, value: impl Display, allowed: impl Display) -> io::Result<()> {
    let why = || format!("{key}={value} is not possible; allowed: {allowed}");
    fits.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, why()))
}

impl Geometry {
    /// The rings of an end of a pipe between ports, of which a port like this may be one: pipes, host rings
    /// and extra buffers there are none.
    #[must_use]
    pub fn of_pipe(&self) -> Geometry {
        Geometry { pipes: 0, host_rings: 0, extra_bufs: 0, ..*self }
    }

    /// Where everything is.
    ///
    /// # Errors
    /// A number out of its range.
    pub fn layout(&self) -> io::Result<Info> {
        self.shared_layout(1)
    }

    /// Where everything is that the first of `members` ports has which share a memory, each with such rings.
    ///
    /// # Errors
    /// A number out of its range.
    pub(super) fn shared_layout(&self, members: u32) -> io::Result<Info> {
        let all = self.rings.saturating_add(self.host_rings);
        let sized = BUF_SIZES.contains(&self.buf_size) && self.buf_size % 64 == 0;
        within(self.rings > 0 && all <= MAX_RINGS, "rings", all, format!("1 to {MAX_RINGS}"))?;
        within((2..=MAX_SLOTS).contains(&self.slots), "slots", self.slots, format!("2 to {MAX_SLOTS}"))?;
        within(sized, "buf-size", self.buf_size, "multiples of 64 from 64 to 65536")?;
        within(self.extra_bufs <= MAX_EXTRA, "extra-bufs", self.extra_bufs, format!("0 to {MAX_EXTRA}"))?;
        within(self.pipes <= MAX_PIPES, "pipes", self.pipes, format!("0 to {MAX_PIPES}"))?;
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_RINGS and MAX_PIPES")]
        let (rings, host_rings, pipes) = (all as u32, self.host_rings as u32, self.pipes as u32);
        let tx_rings = if self.sends { rings } else { 0 };
        #[expect(clippy::cast_possible_truncation, reason = "at most 256 + 16 * MAX_SLOTS")]
        let ring_size =
            (size_of::<RingHead>() + size_of::<Slot>() * self.slots as usize).next_multiple_of(128) as u32;
        let own_bufs = (tx_rings + rings) * self.slots + self.extra_bufs;
        let first = Info {
            ring_size,
            buf_size: self.buf_size,
            extra_bufs: self.extra_bufs,
            tx_rings,
            rx_rings: rings,
            host_rings,
            tx_slots: self.slots,
            rx_slots: self.slots,
            pipes,
            first_buf: RESERVED_BUFS,
            own_bufs,
            ..Info::default()
        };
        let interfaces = u64::from(members) * interfaces_of_one(&first);
        let rings = u64::from(members) * rings_of_one(&first);
        let laid = lay_out(first, interfaces, rings, members * bufs_of_one(&first));
        Ok(Info { total: laid.total.next_multiple_of(PAGE), ..laid })
    }
}

/// `first` in a memory with as many bytes of interfaces, rings and buffers that are owned; up to the last
/// word.
fn lay_out(first: Info, interfaces: u64, rings: u64, bufs: u32) -> Info {
    let bufs = RESERVED_BUFS + bufs;
    let ring_pool = interfaces.next_multiple_of(PAGE);
    let buf_pool = (ring_pool + rings * u64::from(first.ring_size)).next_multiple_of(PAGE);
    let memsize = (buf_pool + u64::from(bufs) * u64::from(first.buf_size) + SLACK).next_multiple_of(PAGE);
    let total = memsize + rings * size_of::<RingStatus>() as u64;
    Info { memsize, total, words: memsize, ring_pool, buf_pool, bufs, ..first }
}

/// Bytes of the interfaces that a port has: its own, those of its pipes, and spare ones.
fn interfaces_of_one(of: &Info) -> u64 {
    pipe_interfaces(of.rx_rings) * (1 + SPARE) + 2 * PIPE_IF * u64::from(of.pipes)
}

/// Rings of a port and its pipes.
fn rings_of_one(of: &Info) -> u64 {
    u64::from(of.tx_rings + of.rx_rings) + 4 * u64::from(of.pipes) + u64::from(idle_ring(of).is_some())
}

/// The ring that leads nowhere, of a client that sends on none.
pub(super) fn idle_ring(of: &Info) -> Option<u32> {
    (of.tx_rings == 0).then_some(of.rx_rings + 4 * of.pipes)
}

/// Buffers of a port and its pipes.
fn bufs_of_one(of: &Info) -> u32 {
    of.own_bufs + 2 * of.pipes * of.tx_slots
}

/// What port `number` of those that share a memory has, of which `first` describes the first.
pub(super) fn member(first: &Info, number: u32) -> Info {
    let bufs = number * bufs_of_one(first);
    part(first, u64::from(number) * interfaces_of_one(first), u64::from(number) * rings_of_one(first), bufs)
}

/// What `first` describes, behind as many bytes of interfaces, rings and buffers.
fn part(first: &Info, interfaces: u64, rings: u64, bufs: u32) -> Info {
    Info {
        interface: first.interface + interfaces,
        ring_pool: first.ring_pool + rings * u64::from(first.ring_size),
        words: first.words + rings * size_of::<RingStatus>() as u64,
        first_buf: first.first_buf + bufs,
        ..*first
    }
}

/// The parts of the memory file that a port has from the start, as offset and length: all but the buffers of
/// its pipes.
pub(super) fn parts(of: &Info) -> [(u64, u64); 4] {
    let rings = rings_of_one(of);
    let bufs = |count: u32| u64::from(count) * u64::from(of.buf_size);
    [
        (of.interface, interfaces_of_one(of)),
        (of.ring_pool, rings * u64::from(of.ring_size)),
        (of.buf_pool + bufs(of.first_buf), bufs(of.own_bufs)),
        (of.words, rings * size_of::<RingStatus>() as u64),
    ]
}

/// Idle rings of each end of a pipe between ports: a pair that leads nowhere, as the host's.
pub(super) const IDLE: u32 = 2;

/// What each end of a pipe between two ports has, of the rings that the geometry asks for: each sends in
/// buffers of its own, and receives in the other's. Host rings, pipes and extra buffers there are none. The
/// file is as long as a BAR.
///
/// # Errors
/// A number out of its range.
pub(super) fn ends(geometry: &Geometry) -> io::Result<[Info; 2]> {
    let alone = Geometry { sends: true, ..geometry.of_pipe() }.layout()?;
    let own_bufs = alone.tx_rings * alone.tx_slots;
    let rings = u64::from(alone.tx_rings + alone.rx_rings + IDLE);
    let interfaces = interfaces_of_one(&alone);
    let laid = lay_out(Info { own_bufs, ..alone }, 2 * interfaces, 2 * rings, 2 * own_bufs);
    let first = Info { total: laid.total.next_power_of_two(), ..laid };
    Ok([first, part(&first, interfaces, rings, own_bufs)])
}

/// The parts of the memory file that both ends have.
pub(super) fn parts_of_ends(first: &Info) -> [(u64, u64); 2] {
    let rings = u64::from(first.tx_rings + first.rx_rings + IDLE);
    [(0, first.memsize), (first.words, 2 * rings * size_of::<RingStatus>() as u64)]
}

/// Where the interfaces of pipes start, behind that of a port with `rings` rings of each direction: it has
/// one offset for each ring, and for the two host rings that every interface mentions.
fn pipe_interfaces(rings: u32) -> u64 {
    (size_of::<If>() as u64 + 16 * (u64::from(rings) + 1)).next_multiple_of(128)
}

/// What the `end` of pipe `number` is like in the region that `of` describes.
pub fn pipe_end(of: &Info, number: u32, end: End) -> Info {
    let before = u64::from(of.tx_rings + of.rx_rings) + 4 * u64::from(number);
    let interfaces =
        pipe_interfaces(of.rx_rings) + PIPE_IF * (2 * u64::from(number) + u64::from(end as u32 - 1));
    Info {
        tx_rings: 1,
        rx_rings: 1,
        host_rings: 0,
        extra_bufs: 0,
        header: 0,
        end: end as u32,
        ..part(of, interfaces, before, 0)
    }
}

/// The first buffer of direction `direction` (0: from the master) of pipe `number`.
pub(super) fn pipe_bufs(of: &Info, number: u32, direction: u32) -> u32 {
    of.first_buf + of.own_bufs + (2 * number + direction) * of.tx_slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        let bad = |change: fn(&mut Geometry)| {
            let mut geometry = Geometry::default();
            change(&mut geometry);
            geometry.layout().unwrap_err().to_string()
        };
        assert!(bad(|g| g.rings = 0).starts_with("rings=0 "));
        assert!(bad(|g| g.rings = 17).starts_with("rings=17 "));
        assert!(bad(|g| g.slots = 1).starts_with("slots=1 "));
        assert!(bad(|g| g.slots = 4097).starts_with("slots=4097 "));
        assert!(bad(|g| g.buf_size = 2000).starts_with("buf-size=2000 "));
        assert!(bad(|g| g.buf_size = 65_600).starts_with("buf-size=65600 "));
        assert!(bad(|g| g.extra_bufs = u32::MAX).starts_with("extra-bufs=4294967295 "));
        assert!(bad(|g| g.pipes = 65).starts_with("pipes=65 "));
    }

    proptest! {
        /// The parts follow one another without overlap, aligned as their contents need.
        #[test]
        fn parts_do_not_overlap(
            rings in 1usize..=MAX_RINGS, slots in 2u32..=MAX_SLOTS, lines in 1u32..=1024, extra in 0u32..=MAX_EXTRA,
            pipes in 0usize..=MAX_PIPES, host in 0usize..MAX_RINGS, sends: bool,
        ) {
            let host_rings = host % rings;
            let rings = rings - host_rings;
            let geometry =
                Geometry { rings, slots, buf_size: 64 * lines, extra_bufs: extra, pipes, host_rings, sends };
            let info = geometry.layout().unwrap();
            let rings = rings + host_rings;
            prop_assert_eq!((info.tx_rings, info.rx_rings as usize), (if sends { info.rx_rings } else { 0 }, rings));
            let interface = size_of::<If>() + 8 * 2 * (rings + 1);
            prop_assert!(interface as u64 <= info.ring_pool);
            prop_assert!(info.ring_size as usize >= size_of::<RingHead>() + 16 * slots as usize);
            prop_assert!(info.ring_size % 128 == 0 && info.ring_pool % 128 == 0);
            let all = u64::from(info.tx_rings + info.rx_rings) + 4 * pipes as u64;
            prop_assert!(info.ring_pool + all * u64::from(info.ring_size) <= info.buf_pool);
            if let Some(last) = info.pipes.checked_sub(1) {
                let first = pipe_end(&info, 0, End::Master);
                prop_assert!(interface as u64 <= first.interface && first.interface % 128 == 0);
                prop_assert_eq!(pipe_bufs(&info, 0, 0), 2 + (info.tx_rings + info.rx_rings) * slots + extra);
                let end = pipe_end(&info, last, End::Slave);
                prop_assert!(end.interface + PIPE_IF <= info.ring_pool);
                prop_assert_eq!(end.ring_pool, info.ring_pool + (all - 4) * u64::from(info.ring_size));
                prop_assert!(end.words + 4 * 256 <= info.total);
                prop_assert_eq!(pipe_bufs(&info, last, 1) + slots, info.bufs);
            }
            let end = info.buf_pool + u64::from(info.bufs) * u64::from(info.buf_size);
            prop_assert!(end + 63 <= info.memsize);
            prop_assert!(info.memsize <= info.words && info.words % 128 == 0);
            prop_assert!(info.words + all * 256 <= info.total && info.total % PAGE == 0);
        }

        /// So do those of both ends of a pipe between ports, inside a file of a BAR's length.
        #[test]
        fn ends_do_not_overlap(rings in 1usize..=15, slots in 2u32..=MAX_SLOTS, lines in 1u32..=64) {
            let geometry = Geometry { rings, slots, buf_size: 64 * lines, ..Geometry::default() };
            let [first, second] = ends(&geometry).unwrap();
            let count = u64::from(first.tx_rings + first.rx_rings + IDLE);
            prop_assert_eq!(first.interface + interfaces_of_one(&first), second.interface);
            prop_assert!(second.interface + interfaces_of_one(&second) <= first.ring_pool);
            prop_assert_eq!(first.ring_pool + count * u64::from(first.ring_size), second.ring_pool);
            prop_assert!(second.ring_pool + count * u64::from(first.ring_size) <= first.buf_pool);
            prop_assert_eq!(first.first_buf + first.own_bufs, second.first_buf);
            prop_assert_eq!(second.first_buf + second.own_bufs, first.bufs);
            prop_assert!(first.buf_pool + u64::from(first.bufs) * u64::from(first.buf_size) + 63 <= first.memsize);
            prop_assert_eq!(first.words + count * 256, second.words);
            prop_assert!(second.words + count * 256 <= first.total && first.total.is_power_of_two());
            prop_assert_eq!(first.total, second.total);
            let [all, words] = parts_of_ends(&first);
            prop_assert!(all.0 + all.1 <= words.0 && words.0 + words.1 <= first.total);
        }

        /// The parts of ports that share a memory follow one another, too, and are as large as those of one
        /// alone.
        #[test]
        fn members_do_not_overlap(
            rings in 1usize..=4, slots in 2u32..=64, extra in 0u32..=10, pipes in 0usize..=3, members in 2u32..=8,
        ) {
            let geometry = Geometry { rings, slots, extra_bufs: extra, pipes, ..Geometry::default() };
            let (alone, first) = (geometry.layout().unwrap(), geometry.shared_layout(members).unwrap());
            prop_assert_eq!(member(&first, 0), first);
            prop_assert_eq!(first.bufs - 2, members * (alone.bufs - 2));
            let last = member(&first, members - 1);
            prop_assert_eq!(parts(&last).map(|(_, len)| len), parts(&alone).map(|(_, len)| len));
            prop_assert_eq!(last.first_buf + bufs_of_one(&last), first.bufs);
            prop_assert!(last.words + parts(&last)[3].1 <= first.total);
            for number in 1..members {
                let (one, next) = (member(&first, number - 1), member(&first, number));
                let [interfaces, rings, _, words] = parts(&one);
                prop_assert_eq!(interfaces.0 + interfaces.1, next.interface);
                prop_assert_eq!(rings.0 + rings.1, next.ring_pool);
                prop_assert_eq!(words.0 + words.1, next.words);
                prop_assert_eq!(one.first_buf + bufs_of_one(&one), next.first_buf);
                prop_assert!(next.interface % 128 == 0 && next.ring_pool % 128 == 0 && next.words % 128 == 0);
            }
            prop_assert!(last.interface + parts(&last)[0].1 <= first.ring_pool);
        }
    }
}
