//! Which clients may be connected to the control socket at once, and for how long without a request.
//!
//! A connection is cheap for its maker and costs the daemon a descriptor and memory, so there are so many
//! slots and no more. Root and the daemon's own user may have all of them; all others together fewer, and
//! each user a few. A client that finds no slot gets that of the connection that owes a request longest. One
//! that is being answered is never displaced.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Slots in all.
pub const SLOTS: usize = 64;

/// Slots of all users together but for root and the daemon's own.
pub const OTHERS: usize = 48;

/// Slots of each of those users.
pub const EACH: usize = 8;

/// How long a new connection may take to send its request whole.
pub const FIRST: Duration = Duration::from_secs(10);

/// How long a connection that was answered may be silent.
pub const IDLE: Duration = Duration::from_secs(60);

/// How long an answer may wait for a client that does not read.
pub const UNREAD: Duration = Duration::from_secs(30);

/// How long a connection has its slot at least before another one takes it: it may have sent a request that
/// was not read yet.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// Why a connection or a request was refused, or a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its user has all of its slots.
    User,
    /// All users but root and the daemon's own have all of their slots.
    Others,
    /// All slots are taken by connections that are being answered.
    Full,
    /// It owed a request longest when another one needed a slot.
    Displaced,
    /// It sent no whole request in time.
    Late,
    /// It was answered, and silent since.
    Idle,
    /// It did not read its answer.
    Unread,
    /// This process has no descriptor left, or another fault of `accept`.
    Accept,
    /// There are as many captures as there may be.
    Captures,
    /// There are as many readers of events as there may be.
    Events,
    /// Its body is too large.
    Body,
}

impl Why {
    /// All of them in their order, with their names for programs.
    pub const ALL: [(Why, &'static str); 11] = [
        (Why::User, "user"),
        (Why::Others, "others"),
        (Why::Full, "full"),
        (Why::Displaced, "displaced"),
        (Why::Late, "late"),
        (Why::Idle, "idle"),
        (Why::Unread, "unread"),
        (Why::Accept, "accept"),
        (Why::Captures, "captures"),
        (Why::Events, "events"),
        (Why::Body, "body"),
    ];
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::User => write!(f, "its user has {EACH} connections, the most that one user may have; close one"),
            Why::Others => write!(
                f,
                "users other than root and the daemon's own have {OTHERS} connections, the most that they may have together"
            ),
            Why::Full => write!(f, "there are {SLOTS} connections, the most that there may be, and all are being answered"),
            Why::Displaced => f.write_str("it owed a request longest when another one needed its place"),
            Why::Late => write!(f, "it sent no whole request within {FIRST:?}"),
            Why::Idle => write!(f, "it was silent for {IDLE:?}"),
            Why::Unread => write!(f, "it read nothing of its answer for {UNREAD:?}"),
            Why::Accept => f.write_str("it could not be accepted"),
            Why::Captures => {
                write!(f, "there are {} captures, the most that may run at once; end one", super::http::CAPTURES)
            }
            Why::Events => {
                write!(f, "there are {} readers of events, the most that there may be; end one", super::http::READERS)
            }
            Why::Body => write!(f, "its body is larger than {} bytes, the most that is taken", super::listen::BODY),
        }
    }
}

/// The user at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// It is root or the daemon's own user.
    pub own: bool,
}

struct ConnectionSlot<T> {
    peer: Peer,
    /// Since when it owes a request; none while it is being answered.
    owes: Option<Instant>,
    answered: bool,
    /// Since when what is for it cannot be sent.
    unread: Option<Instant>,
    /// What ends it.
    end: T,
}

/// The slots that are taken; `T` is what ends a connection.
pub struct ConnectionSlots<T> {
    taken: HashMap<u64, ConnectionSlot<T>>,
    next: u64,
}

impl<T> ConnectionSlots<T> {
    /// None is taken.
    pub fn new() -> ConnectionSlots<T> {
        ConnectionSlots { taken: HashMap::new(), next: 0 }
    }

    /// Takes a slot for `peer`: its number, and what ends the connection that had it, which is to be ended.
    /// Connections that owe a request for less than `patience` keep theirs.
    pub fn enter(
        &mut self,
        peer: Peer,
        end: T,
        now: Instant,
        patience: Duration,
    ) -> Result<(u64, Option<T>), Why> {
        let count =
            |like: &dyn Fn(&Peer) -> bool| self.taken.values().filter(|slot| like(&slot.peer)).count();
        let (why, like): (Why, &dyn Fn(&Peer) -> bool) = if !peer.own && count(&|p| p.uid == peer.uid) >= EACH
        {
            (Why::User, &|p| p.uid == peer.uid)
        } else if !peer.own && count(&|p| !p.own) >= OTHERS {
            (Why::Others, &|p| !p.own)
        } else if self.taken.len() >= SLOTS {
            (Why::Full, &|p| peer.own || !p.own)
        } else {
            return Ok((self.seat(peer, end, now), None));
        };
        let owing = self.taken.iter().filter(|(_, slot)| like(&slot.peer));
        let owing = owing.filter_map(|(number, slot)| Some((slot.owes?, *number)));
        let (_, number) = owing.min().filter(|(owes, _)| now.duration_since(*owes) >= patience).ok_or(why)?;
        let old = self.taken.remove(&number).map(|slot| slot.end);
        Ok((self.seat(peer, end, now), old))
    }

    fn seat(&mut self, peer: Peer, end: T, now: Instant) -> u64 {
        self.next += 1;
        let slot = ConnectionSlot { peer, owes: Some(now), answered: false, unread: None, end };
        self.taken.insert(self.next, slot);
        self.next
    }

    /// Connection `number` has sent a request whole.
    pub fn asked(&mut self, number: u64) {
        if let Some(slot) = self.taken.get_mut(&number) {
            slot.owes = None;
        }
    }

    /// Connection `number` was answered.
    pub fn answered(&mut self, number: u64, now: Instant) {
        if let Some(slot) = self.taken.get_mut(&number) {
            slot.owes = Some(now);
            slot.answered = true;
        }
    }

    /// Something could be sent to connection `number`, or not.
    pub fn sent(&mut self, number: u64, could: bool, now: Instant) {
        let Some(slot) = self.taken.get_mut(&number) else { return };
        if !could {
            slot.unread.get_or_insert(now);
        } else if slot.unread.take().is_some() && slot.owes.is_some() {
            // It was still reading: its silence begins here.
            slot.owes = Some(now);
        }
    }

    /// Connection `number` is gone.
    pub fn leave(&mut self, number: u64) {
        self.taken.remove(&number);
    }

    /// What ends the connections whose time has passed.
    pub fn overdue(&mut self, now: Instant) -> Vec<(Why, T)> {
        let past =
            |since: Option<Instant>, time| since.is_some_and(|since| now.duration_since(since) >= time);
        let why = |slot: &ConnectionSlot<T>| match slot {
            slot if slot.unread.is_some() => past(slot.unread, UNREAD).then_some(Why::Unread),
            slot if slot.answered => past(slot.owes, IDLE).then_some(Why::Idle),
            slot => past(slot.owes, FIRST).then_some(Why::Late),
        };
        let over: Vec<_> =
            self.taken.iter().filter_map(|(number, slot)| Some((*number, why(slot)?))).collect();
        let end = |(number, why)| self.taken.remove(&number).map(|slot| (why, slot.end));
        over.into_iter().filter_map(end).collect()
    }

    /// How many are taken.
    pub fn len(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Peer = Peer { uid: 0, own: true };

    fn user(uid: u32) -> Peer {
        Peer { uid, own: false }
    }

    /// So many connections of `peer`, which all send a request, or do not.
    fn fill(slots: &mut ConnectionSlots<u32>, peer: Peer, count: u32, now: Instant, ask: bool) {
        for i in 0..count {
            let (number, old) = slots.enter(peer, i, now, PATIENCE).unwrap();
            assert_eq!(old, None);
            if ask {
                slots.asked(number);
            }
        }
    }

    #[test]
    fn a_user_displaces_its_own_connections_only() {
        let (mut slots, now) = (ConnectionSlots::new(), Instant::now());
        fill(&mut slots, user(7), 8, now, false);
        assert_eq!(slots.enter(user(7), 8, now, PATIENCE), Err(Why::User));
        assert_eq!(slots.enter(user(8), 9, now, PATIENCE).unwrap().1, None);
        let (_, old) = slots.enter(user(7), 8, now + PATIENCE, PATIENCE).unwrap();
        assert!(old.is_some_and(|old| old < 8));
    }

    #[test]
    fn root_gets_in_beside_all_others() {
        let (mut slots, now) = (ConnectionSlots::new(), Instant::now());
        for uid in 1..=6 {
            fill(&mut slots, user(uid), 8, now, true);
        }
        assert_eq!(slots.enter(user(9), 0, now + PATIENCE, PATIENCE), Err(Why::Others));
        fill(&mut slots, ROOT, 16, now, true);
        assert_eq!(slots.len(), SLOTS);
        assert_eq!(slots.enter(ROOT, 0, now + PATIENCE, PATIENCE), Err(Why::Full));
    }

    #[test]
    fn who_owes_a_request_longest_goes_and_nobody_who_is_being_answered() {
        let (mut slots, now) = (ConnectionSlots::new(), Instant::now());
        fill(&mut slots, ROOT, 62, now, true);
        let first = slots.enter(ROOT, 100, now, PATIENCE).unwrap().0;
        slots.enter(ROOT, 101, now + PATIENCE, PATIENCE).unwrap();
        let later = now + 2 * PATIENCE;
        slots.asked(first);
        slots.answered(first, later);
        assert_eq!(slots.enter(ROOT, 102, later, PATIENCE).unwrap().1, Some(101));
        assert_eq!(slots.enter(ROOT, 103, later, PATIENCE), Err(Why::Full));
        // A client that asks once more, after a wait, gets one that was made or answered just now.
        assert!(slots.enter(ROOT, 103, later, Duration::ZERO).unwrap().1.is_some());
        // Root's are not for others.
        let mut slots = ConnectionSlots::new();
        fill(&mut slots, ROOT, 64, now, false);
        assert_eq!(slots.enter(user(1), 0, later, PATIENCE), Err(Why::Full));
    }

    #[test]
    fn time_passes_for_those_who_say_nothing_and_those_who_read_nothing() {
        let (mut slots, now) = (ConnectionSlots::new(), Instant::now());
        let mut enter = |end| slots.enter(ROOT, end, now, PATIENCE).unwrap().0;
        let (_silent, busy, idle, unread) = (enter(1), enter(2), enter(3), enter(4));
        slots.asked(busy);
        slots.asked(idle);
        slots.answered(idle, now);
        slots.asked(unread);
        slots.sent(unread, false, now + FIRST);
        slots.sent(unread, false, now + UNREAD);
        assert_eq!(slots.overdue(now + FIRST / 2), []);
        assert_eq!(slots.overdue(now + FIRST), [(Why::Late, 1)]);
        assert_eq!(slots.overdue(now + FIRST + UNREAD), [(Why::Unread, 4)]);
        assert_eq!(slots.overdue(now + IDLE), [(Why::Idle, 3)]);
        // A capture may run for ever.
        assert_eq!(slots.overdue(now + 1000 * IDLE), []);
        slots.leave(busy);
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn who_reads_again_has_all_of_its_time() {
        let (mut slots, now) = (ConnectionSlots::new(), Instant::now());
        let number = slots.enter(ROOT, 1, now, PATIENCE).unwrap().0;
        slots.asked(number);
        slots.answered(number, now);
        slots.sent(number, false, now);
        let read = now + UNREAD / 2;
        slots.sent(number, true, read);
        assert_eq!(slots.overdue(now + IDLE), []);
        assert_eq!(slots.overdue(read + IDLE), [(Why::Idle, 1)]);
    }
}
