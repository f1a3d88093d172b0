//! What the control plane does with the MAC table while I/O cores use it: it ages and forgets entries, pins
//! and lists them. It changes words by the same exchanges as the cores (`super`).

use super::super::atomic::Ordering;
use super::super::claim::{Claim, Contest};
use super::super::sizes::WAYS;
use super::{kind_in, port_of, At, Dispute, Entry, Kind, Learned, MacTable, Teller};
use super::{
    DISPUTED, FIXED, FREE_WAYS, KIND, LEARNED, MAC, PINNED, PORT, PRESSURE, STATIC, TAG, TAG_BITS, TRIES,
};
use crate::port::PortId;

impl MacTable {
    fn each(&self, mut see: impl FnMut(At, u64)) {
        for bucket in 0..self.buckets.len() {
            for way in 0..WAYS {
                let at = At { bucket, way };
                see(at, self.word(at).load(Ordering::Relaxed));
            }
        }
    }

    /// Forgets what was not seen for `ageing` seconds, but at ports where it does `stay`.
    pub fn age(&self, now: u32, ageing: u32, stay: impl Fn(PortId) -> bool) {
        self.each(|at, entry| {
            let loose = entry != 0 && entry & FIXED == 0;
            if loose && stay(port_of(entry)) {
                self.touch(at, now);
            }
            let claim = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
            let age = now.saturating_sub(self.seen[at.bucket][at.way].load(Ordering::Relaxed));
            if loose && age >= ageing {
                self.give_up(at, entry, now, ageing);
            } else if claim.claimant().is_some() && (entry & DISPUTED == 0 || claim.age(now) >= ageing)
                || claim.was_held() && !claim.is_held(now)
            {
                self.exchange_claim(at, claim, Claim::NONE);
                if entry & DISPUTED != 0 {
                    self.exchange(at, entry, entry & !DISPUTED);
                }
            }
        });
    }

    /// Forgets everything behind `port`, but for static entries if `stays`. A port that claims one of its
    /// addresses gets it.
    pub fn forget(&self, port: PortId, stays: bool, now: u32, ageing: u32) {
        let goes = |_, entry| !(stays && port_of(entry) == port && entry & KIND == STATIC);
        self.forget_if(port, now, ageing, goes);
    }

    /// Forgets what is behind `port`, or what it claims, in VLANs that it does not carry.
    pub fn forget_vlans(&self, port: PortId, carries: impl Fn(u16) -> bool, now: u32, ageing: u32) {
        let goes = |at, entry| entry != 0 && !carries(self.vlan_at(at, entry));
        self.forget_if(port, now, ageing, goes);
    }

    fn forget_if(&self, port: PortId, now: u32, ageing: u32, goes: impl Fn(At, u64) -> bool) {
        self.each(|at, entry| {
            let claim = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
            let (own, claims) = (entry != 0 && port_of(entry) == port, claim.port() == Some(port));
            if !(own || claims) || !goes(at, entry) {
                return;
            }
            if own {
                self.give_up(at, entry, now, ageing);
            } else {
                self.exchange_claim(at, claim, Claim::NONE);
                if entry & DISPUTED != 0 {
                    self.exchange(at, entry, entry & !DISPUTED);
                }
            }
        });
    }

    /// Forgets `mac` if it is behind `port`.
    pub fn forget_one(&self, mac: u64, port: PortId) {
        let (bucket, tag) = self.place_of(mac);
        for at in (0..WAYS).map(|way| At { bucket, way }) {
            let entry = self.word(at).load(Ordering::Relaxed);
            if entry != 0 && entry & (TAG | PORT) == tag | u64::from(port.0) << TAG_BITS {
                self.remove(at, entry);
            }
        }
    }

    fn vlan_at(&self, at: At, entry: u64) -> u16 {
        u16::try_from(self.mac_at(at.bucket, entry) >> 48).unwrap_or(0)
    }

    /// Whether the bucket of `mac` is left with places for stations that speak when one more entry there
    /// stays.
    pub fn may_fix(&self, mac: u64) -> bool {
        let bucket = &self.buckets[self.place_of(mac).0].0;
        let fixed = bucket.iter().filter(|word| word.load(Ordering::Relaxed) & FIXED != 0).count();
        fixed + FREE_WAYS < WAYS
    }

    /// Takes over what `old` has, entries that stay first. Cores may learn meanwhile, by the one or the
    /// other.
    pub fn take_over_all(&self, old: &MacTable) {
        for fixed in [true, false] {
            old.each(|at, word| {
                if word != 0 && (word & FIXED != 0) == fixed {
                    let now = old.seen[at.bucket][at.way].load(Ordering::Relaxed);
                    let by = Teller {
                        port: port_of(word),
                        limit: 0,
                        owns: false,
                        moves: false,
                        now,
                        ageing: u32::MAX,
                    };
                    self.place(old.mac_at(at.bucket, word), &by, word & KIND);
                }
            });
        }
    }

    /// Puts `mac` behind `by.port`, to stay unless it is `Learned`; false if there is no room.
    pub fn pin(&self, mac: u64, by: &Teller, kind: Kind) -> bool {
        let kind = match kind {
            Kind::Learned => LEARNED,
            Kind::Pinned => PINNED,
            Kind::Static => STATIC,
        };
        let by = Teller { limit: 0, ..*by };
        let (bucket, tag) = self.place_of(mac);
        let wanted = tag | u64::from(by.port.0) << TAG_BITS | kind;
        for _ in 0..TRIES {
            let there = (0..WAYS).map(|way| At { bucket, way }).find_map(|at| {
                let entry = self.word(at).load(Ordering::Relaxed);
                (entry & TAG == tag && entry != 0).then_some((at, entry))
            });
            let done = match there {
                Some((_, entry)) if entry == wanted => return true,
                Some((_, entry)) if kind == LEARNED && port_of(entry) == by.port => return true,
                Some((at, entry)) if port_of(entry) == by.port => {
                    self.set_claim(at, Claim::NONE);
                    self.exchange(at, entry, wanted)
                }
                Some((at, entry)) => {
                    matches!(self.take_over(at, entry, &by, kind), Learned::Moved(_))
                }
                None => self.place(mac, &by, kind) == Learned::New,
            };
            if done {
                return true;
            }
        }
        false
    }

    /// Lets go of pinned and static entries for which `keep` does not hold: they age like others from now on.
    pub fn unpin(&self, now: u32, keep: impl Fn(&Entry) -> bool) {
        self.each(|at, entry| {
            if entry & FIXED != 0 && !keep(&self.entry(at, entry)) {
                self.seen[at.bucket][at.way].store(now, Ordering::Relaxed);
                self.exchange(at, entry, (entry & !KIND) | LEARNED);
            }
        });
    }

    /// Whether buckets overflow although most of the table is empty: by chance one in a hundred thousand
    /// buckets does at a quarter of what fits. Asked every second.
    pub fn pressed(&self) -> bool {
        if self.evicted.0.swap(0, Ordering::Relaxed) < PRESSURE {
            return false;
        }
        let mut used = 0;
        self.each(|_, entry| used += usize::from(entry != 0));
        used <= self.capacity() / 4
    }

    /// Has it under attack.
    #[cfg(test)]
    pub fn press(&self) {
        self.evicted.0.store(PRESSURE, Ordering::Relaxed);
    }

    /// Shows addresses that two ports have at time `now`; those that are held once.
    pub fn disputes(&self, now: u32, mut see: impl FnMut(Dispute)) {
        self.each(|at, entry| {
            let claim = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
            let Some((contest, other, third)) = claim.dispute(now) else { return };
            let is_new = contest != Contest::Held || self.exchange_claim(at, claim, claim.told());
            if is_new && entry != 0 {
                let (mac, home) = (self.mac_at(at.bucket, entry) & MAC, port_of(entry));
                see(Dispute { contest, mac, home, other, third });
            }
        });
    }

    fn entry(&self, at: At, word: u64) -> Entry {
        let claim = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
        let key = self.mac_at(at.bucket, word);
        Entry {
            mac: key & MAC,
            vlan: u16::try_from(key >> 48).unwrap_or(0),
            port: port_of(word),
            seen: self.seen[at.bucket][at.way].load(Ordering::Relaxed),
            kind: kind_in(word),
            claimant: claim.claimant().filter(|_| word & DISPUTED != 0),
            held: claim.held(),
        }
    }

    /// All entries, in no particular order.
    pub fn entries(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        self.each(|at, word| {
            if word != 0 {
                all.push(self.entry(at, word));
            }
        });
        all
    }

    /// Entries and claims of `port`, counted one by one: what [`MacTable::count`] must be.
    pub fn recount(&self, port: PortId) -> u32 {
        let mut n = 0;
        self.each(|at, word| {
            n += u32::from(word != 0 && port_of(word) == port);
            n += u32::from(self.contenders(at.bucket, at.way).0 == Some(port));
        });
        n
    }
}
