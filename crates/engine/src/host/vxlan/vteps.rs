//! Who is at the other end: the tunnel endpoints (VTEPs) of one VNI, and the stations behind them.
//!
//! Theory of operation. Endpoints are known because the operator names them (`peers`), or because a control
//! plane does. In the first case stations are learned from what comes in, move at once to where they were
//! seen last, and are forgotten when they are silent; in the second nothing is learned. A frame for a station
//! that is not known, and for a group, goes to each endpoint that takes floods (RFC 7348 §4.2, by head-end
//! replication). What comes from an address that is no endpoint is refused.
//!
//! A request for an address of which the control plane has told whose it is (RFC 7432 §10) goes to the
//! endpoint of that station only. So the station answers itself, and it also hears who else claims its
//! address. Whose address is whose here is noted from what stations say of themselves on its way to the
//! endpoints.
//!
//! A station is learned in its VLAN, as frames in the tunnel say it. An endpoint whose stations have taken as
//! many places as are left gets no more: who fills the table leaves room for stations behind other endpoints.
//!
//! I/O cores read under a lock that they take once for a batch. It is written where a station is new or has
//! moved.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::packet::{asks, ip_number, Batch, Ether, Frame, UNSPECIFIED};

/// Most endpoints that take floods or have stations.
pub const MAX_VTEPS: usize = 1024;
/// Seconds for which frames are taken from an endpoint of which the control plane says no more.
const GRACE: u32 = 120;
/// Most stations, and addresses of theirs.
const MAX_STATIONS: usize = 1 << 18;
/// Most addresses of stations here.
const MAX_HERE: usize = 1 << 14;

/// The endpoints of one VNI.
pub struct Vteps {
    known: RwLock<Known>,
    /// They are told by a control plane, and so are their stations.
    pub told: bool,
    /// The switch's clock: seconds.
    now: AtomicU32,
    /// Addresses of stations here, IPv4 mapped, and how often one of them was new.
    here: Mutex<HashMap<u128, u64>>,
    news: AtomicU32,
}

#[derive(Default)]
pub(super) struct Known {
    endpoints: Vec<Vtep>,
    numbers: HashMap<IpAddr, u16>,
    /// By address, and above it the VLAN.
    stations: HashMap<u64, Station>,
    /// Their addresses, IPv4 mapped.
    addresses: HashMap<u128, u64>,
}

struct Vtep {
    at: IpAddr,
    floods: bool,
    stations: u32,
    /// When it took floods or had stations last.
    last: u32,
}

struct Station {
    vtep: u16,
    seen: AtomicU32,
}

impl Known {
    /// The address of endpoint `number`.
    pub(super) fn address(&self, number: u16) -> Option<IpAddr> {
        Some(self.endpoints.get(usize::from(number))?.at)
    }

    /// The endpoint behind which `mac` is.
    pub(super) fn find(&self, mac: u64) -> Option<u16> {
        Some(self.stations.get(&mac)?.vtep)
    }

    /// The endpoints that take floods.
    pub(super) fn floods(&self) -> impl Iterator<Item = u16> + '_ {
        (0..).zip(&self.endpoints).filter(|(_, vtep)| vtep.floods).map(|(number, _)| number)
    }

    /// The number of the endpoint at this address, which may be a new one. `None`: there are too many.
    fn enter(&mut self, at: IpAddr) -> Option<u16> {
        if let Some(number) = self.numbers.get(&at) {
            return Some(*number);
        }
        let unused = |vtep: &Vtep| !vtep.floods && vtep.stations == 0;
        let place = match self.endpoints.len() {
            ..MAX_VTEPS => self.endpoints.len(),
            _ => self.endpoints.iter().position(unused)?,
        };
        let number = u16::try_from(place).ok()?;
        let vtep = Vtep { at, floods: false, stations: 0, last: 0 };
        match self.endpoints.get_mut(place) {
            Some(old) => _ = self.numbers.remove(&std::mem::replace(old, vtep).at),
            None => self.endpoints.push(vtep),
        }
        self.numbers.insert(at, number);
        Some(number)
    }

    /// Whether one more station may be learned to be behind endpoint `number`.
    fn has_room(&self, number: u16) -> bool {
        let left = MAX_STATIONS.saturating_sub(self.stations.len());
        self.endpoints.get(usize::from(number)).is_some_and(|vtep| (vtep.stations as usize) < left)
    }

    fn put(&mut self, mac: u64, vtep: u16, now: u32) -> bool {
        if self.stations.len() >= MAX_STATIONS && !self.stations.contains_key(&mac) {
            return false;
        }
        self.count(vtep, 1);
        if let Some(old) = self.stations.insert(mac, Station { vtep, seen: AtomicU32::new(now) }) {
            self.count(old.vtep, -1);
        }
        true
    }

    fn count(&mut self, vtep: u16, by: i32) {
        if let Some(vtep) = self.endpoints.get_mut(usize::from(vtep)) {
            vtep.stations = vtep.stations.saturating_add_signed(by);
        }
    }
}

impl Vteps {
    /// Those at `peers`; without, a control plane tells of them.
    pub(super) fn new(peers: Option<&[IpAddr]>) -> Vteps {
        let vteps = Vteps {
            known: RwLock::default(),
            told: peers.is_none(),
            now: AtomicU32::new(0),
            here: Mutex::default(),
            news: AtomicU32::new(0),
        };
        vteps.flood(peers.unwrap_or_default());
        vteps
    }

    /// The address `mac` of `frame`, by which its station is known: with the VLAN of its tag, unless a
    /// control plane tells, which tells of no tags.
    #[inline]
    pub(super) fn key(&self, frame: &Frame, mac: u64) -> u64 {
        let tci = if self.told { None } else { Ether::parse(frame.head()).and_then(|it| it.tci) };
        mac | u64::from(tci.unwrap_or(0) & 0xfff) << 48
    }

    /// The number of the endpoint at this address, if frames from there are taken: it is one, or was one a
    /// while ago. What a control plane says of a host whose routing daemon was killed is gone before that
    /// host has lost its way to others.
    pub(super) fn admits(&self, at: IpAddr) -> Option<u16> {
        let known = self.read();
        let number = *known.numbers.get(&at)?;
        let vtep = known.endpoints.get(usize::from(number))?;
        let was =
            self.told && vtep.last > 0 && self.now.load(Ordering::Relaxed).saturating_sub(vtep.last) < GRACE;
        (vtep.floods || vtep.stations > 0 || was).then_some(number)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// These endpoints, and no others, get floods from now on; false if there are too many.
    pub fn flood(&self, to: &[IpAddr]) -> bool {
        let mut known = self.write();
        let now = self.now.load(Ordering::Relaxed).max(1);
        for vtep in known.endpoints.iter_mut().filter(|vtep| vtep.floods) {
            (vtep.floods, vtep.last) = (false, now);
        }
        to.iter().fold(true, |all, at| {
            let number = known.enter(*at);
            let vtep = number.and_then(|number| known.endpoints.get_mut(usize::from(number)));
            vtep.map(|vtep| vtep.floods = true).is_some() && all
        })
    }

    /// `mac` is behind the endpoint at this address; false if there is no room.
    pub fn put(&self, mac: u64, at: IpAddr) -> bool {
        let mut known = self.write();
        known.enter(at).is_some_and(|vtep| known.put(mac, vtep, self.now.load(Ordering::Relaxed)))
    }

    /// `mac` is behind no endpoint.
    pub fn take(&self, mac: u64) {
        let mut known = self.write();
        if let Some(old) = known.stations.remove(&mac) {
            known.count(old.vtep, -1);
            if let Some(vtep) = known.endpoints.get_mut(usize::from(old.vtep)) {
                vtep.last = self.now.load(Ordering::Relaxed).max(1);
            }
        }
    }

    /// No endpoint gets floods, and nothing is known of stations elsewhere.
    pub fn forget(&self) {
        *self.write() = Known::default();
    }

    /// The address `ip` is that of this station, or of none.
    pub fn resolve(&self, ip: IpAddr, mac: Option<u64>) {
        let addresses = &mut self.write().addresses;
        match mac {
            Some(mac) if addresses.len() < MAX_STATIONS => _ = addresses.insert(ip_number(ip), mac),
            _ => _ = addresses.remove(&ip_number(ip)),
        }
    }

    /// The endpoint of the station for which a frame for many asks, if that is known; whose address the
    /// sender has is noted.
    pub(super) fn asked(&self, known: &Known, batch: &Batch, frame: &Frame) -> Option<u16> {
        let (whose, whom) = if self.told { asks(batch, frame)? } else { return None };
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = here.len() < MAX_HERE || here.contains_key(&whose);
        if has_room && !UNSPECIFIED.contains(&whose) && here.insert(whose, frame.src()) != Some(frame.src()) {
            self.news.fetch_add(1, Ordering::Relaxed);
        }
        drop(here);
        // Who asks for its own address tells everybody.
        known.find(*known.addresses.get(&whom?).filter(|mac| **mac != frame.src())?)
    }

    /// Changes when a station here has another address.
    pub fn news(&self) -> u32 {
        self.news.load(Ordering::Relaxed)
    }

    /// Addresses of stations here; those of others are forgotten.
    pub fn addresses(&self, is_here: impl Fn(u64) -> bool) -> Vec<(IpAddr, u64)> {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        here.retain(|_, mac| is_here(*mac));
        here.iter().map(|(ip, mac)| (Ipv6Addr::from(*ip).to_canonical(), *mac)).collect()
    }

    /// Frames came from these stations behind these endpoints.
    pub(super) fn learn(&self, seen: &[(u64, u16)]) {
        if self.told {
            return;
        }
        let now = self.now.load(Ordering::Relaxed);
        let known = self.read();
        let is_news = |(mac, vtep): &(u64, u16)| match known.stations.get(mac) {
            Some(station) if station.vtep == *vtep => {
                if station.seen.load(Ordering::Relaxed) != now {
                    station.seen.store(now, Ordering::Relaxed);
                }
                false
            }
            Some(_) => true,
            None => mac & 1 == 0 && known.has_room(*vtep),
        };
        if seen.iter().filter(|it| is_news(it)).count() == 0 {
            return;
        }
        drop(known);
        let mut known = self.write();
        for (mac, vtep) in seen.iter().filter(|(mac, _)| mac & 1 == 0) {
            let may = known.find(*mac).map_or_else(|| known.has_room(*vtep), |at| at != *vtep);
            if may {
                known.put(*mac, *vtep, now);
            }
        }
    }

    /// It is `now` on the switch's clock: forgets stations that were learned and silent for `ageing` seconds.
    pub fn age(&self, now: u32, ageing: u32) {
        self.now.store(now, Ordering::Relaxed);
        let is_old = |station: &Station| now.saturating_sub(station.seen.load(Ordering::Relaxed)) >= ageing;
        if self.told || !self.read().stations.values().any(is_old) {
            return;
        }
        let known = &mut *self.write();
        let Known { endpoints, stations, .. } = known;
        stations.retain(|_, station| {
            let old = is_old(station);
            if let (true, Some(vtep)) = (old, endpoints.get_mut(usize::from(station.vtep))) {
                vtep.stations = vtep.stations.saturating_sub(1);
            }
            !old
        });
    }

    /// How many take floods, and how many stations are behind them and others.
    pub(super) fn counts(&self) -> (usize, usize) {
        let known = self.read();
        (known.floods().count(), known.stations.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const TWO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn stations_are_where_they_were_seen_last_until_they_are_silent() {
        let vteps = Vteps::new(Some(&[ONE, TWO]));
        vteps.learn(&[(2, 0), (4, 1), (5, 1)]);
        assert_eq!((vteps.read().find(2), vteps.read().find(4)), (Some(0), Some(1)));
        assert_eq!(vteps.read().find(5), None, "a group is no station");
        vteps.age(299, 300);
        vteps.learn(&[(2, 1)]);
        vteps.age(300, 300);
        assert_eq!((vteps.read().find(2), vteps.read().find(4)), (Some(1), None));
        assert_eq!(vteps.counts(), (2, 1));
    }

    /// A guest behind one endpoint sends from ever new addresses.
    #[test]
    fn who_fills_the_table_leaves_room_for_others() {
        let vteps = Vteps::new(Some(&[ONE, TWO]));
        let batch = |from: u64| (from..from + 256).map(|n| (4 + 2 * n, 0)).collect::<Vec<_>>();
        (0..MAX_STATIONS as u64 / 256).for_each(|n| vteps.learn(&batch(256 * n)));
        assert_eq!(vteps.counts().1, MAX_STATIONS / 2);
        vteps.learn(&[(2, 1)]);
        assert_eq!(vteps.read().find(2), Some(1));
        // One that is known moves there nevertheless.
        vteps.learn(&[(2, 0)]);
        assert_eq!(vteps.read().find(2), Some(0));
        // Nobody waits for those that say nothing for learned ones to be rewritten.
        let readers = vteps.read();
        vteps.learn(&batch(1 << 30));
        drop(readers);
        assert_eq!(vteps.read().find(4 + (2 << 30)), None);
    }

    #[test]
    fn what_a_control_plane_tells_holds_until_it_says_otherwise() {
        let vteps = Vteps::new(None);
        assert_eq!(vteps.admits(ONE), None);
        assert!(vteps.flood(&[ONE]) && vteps.put(2, TWO));
        vteps.learn(&[(2, 0), (4, 0)]);
        vteps.age(1000, 300);
        let number = |at| vteps.admits(at);
        assert_eq!((vteps.read().find(2), vteps.read().find(4)), (number(TWO), None));
        assert_eq!(vteps.read().floods().collect::<Vec<_>>(), [0]);
        vteps.take(2);
        vteps.flood(&[]);
        vteps.age(1000 + GRACE - 1, 300);
        assert_eq!((number(ONE), number(TWO)), (Some(0), Some(1)), "they may not know yet");
        vteps.age(1000 + GRACE, 300);
        assert_eq!((number(ONE), number(TWO), vteps.counts()), (None, None, (0, 0)));
    }

    #[test]
    fn there_are_only_so_many() {
        let at = |n: usize| IpAddr::from(u32::try_from(n).unwrap().to_be_bytes());
        let vteps = Vteps::new(None);
        assert!((0..MAX_VTEPS).all(|n| vteps.put(2 * n as u64, at(n))));
        assert!(!vteps.put(1 << 40, at(MAX_VTEPS)) && !vteps.flood(&[at(MAX_VTEPS)]));
        vteps.take(0);
        assert!(vteps.put(1 << 40, at(MAX_VTEPS)));
        assert_eq!((vteps.admits(at(0)), vteps.admits(at(MAX_VTEPS))), (None, Some(0)));
    }
}
