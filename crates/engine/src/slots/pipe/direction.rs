//! One direction of a pipe: slots in, the same slots out.
//!
//! Theory of operation. The sender's ring and the receiver's have the same slots, in the same places, and
//! name the same buffers. What the sender gives up is written into the receiver's ring where it does not
//! stand there already, and shown to the receiver; what the receiver releases is the sender's again, with
//! another buffer where the receiver exchanged it (`NS_BUF_CHANGED`). No buffer is touched. Frames that go
//! round in the same buffers with the same lengths cost two indices a batch, and a look at each slot.
//!
//! Nothing is dropped but what cannot be: a slot that names no buffer of the pipe passes without bytes. Only
//! whole frames pass. A sender whose ring is full waits. While no receiver is there nothing moves.
//!
//! A sender whose `head` makes no sense is back where the receiver's ring ends, whatever it says next: what
//! the receiver has is not the sender's to give up once more.
//!
//! Access. The direction stands behind a lock. Its sender's I/O core takes it once a visit. Each end puts its
//! own half in and takes it out, so when that is done no core touches that end's memory any more. No
//! conversation touches a guest's memory under the lock: that memory may make it wait, and an I/O core would
//! wait with it. If an I/O core waits in the receiver's memory, that is the receiver's overrun.

use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sidecore_abi::netmap::{SlotWord, NS_BUF_CHANGED, NS_INDIRECT, NS_MOREFRAG};

use crate::mem::Act;
use crate::observe::account::Outcome;
use crate::observe::PortCounters;
use crate::port::Port;
use crate::ring::{Block, ClientRx, ClientTx, Hand, Hands, RingAccess, RingStats};
use crate::util::fault::Fault;

/// The end that receives, as the I/O core of the other one tells it of frames.
pub trait Far: Send + Sync {
    /// Its port: the account of the memory in which the ring's indices are, the counters of its frames, and
    /// its fault.
    fn port(&self) -> &Port;

    /// It waits for frames, and some have come. How many interrupts were sent.
    fn raise(&self) -> u64;

    /// Frames have come, whether it waits for them or not.
    fn note(&self) {}
}

/// What a visit moved.
#[derive(Default)]
pub struct Moved {
    /// Frames, with those that were dropped.
    pub frames: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Those of them that were dropped: a slot names no buffer of the pipe, more bytes than one has, or
    /// memory outside.
    pub bad: u32,
    /// The sender waits for slots, and there are some.
    pub room: bool,
    /// What came to the receiver, and where that is counted.
    pub out: Option<(PortCounters, Outcome)>,
}

/// A direction.
pub(super) struct PipeDirection {
    tx: ClientTx<Hand>,
    rx: ClientRx<Hand>,
    /// The sender's `head` up to which everything was looked at: behind it is no whole frame.
    looked: u32,
    sender: u64,
    receiver: u64,
    far: Option<Arc<dyn Far>>,
}

/// Numbers of halves, so that one which was replaced takes out nothing but itself.
static HALVES: AtomicU64 = AtomicU64::new(1);

impl PipeDirection {
    pub(super) fn new((tx, rx): (ClientTx<Hand>, ClientRx<Hand>)) -> PipeDirection {
        let looked = rx.next();
        PipeDirection { tx, rx, looked, sender: 0, receiver: 0, far: None }
    }

    /// Where the ring of the sender is, and that of the receiver.
    pub(super) fn positions(&self) -> [[u32; 3]; 2] {
        [self.tx.position(), self.rx.position()]
    }

    /// Takes note of what the sender has given up. False: its `head` makes no sense.
    #[inline]
    fn look(&mut self) -> bool {
        self.tx.look();
        if !self.tx.access.is_lost() {
            return true;
        }
        // The ring itself went back to all that was not released, which the receiver has.
        self.tx.set_position(self.tx.first(), self.rx.next());
        self.looked = self.rx.next();
        false
    }

    #[inline]
    fn has_news(&mut self) -> bool {
        self.look();
        let Some(far) = &self.far else { return false };
        self.tx.last() != self.looked || far.port().overrun.timed(Act::Touch, || self.rx.has_moved())
    }

    #[inline]
    fn pass(&mut self, limit: usize) -> Moved {
        let mut moved = Moved::default();
        if !self.look() {
            return moved;
        }
        let Some(released) = self.take_back() else { return moved };
        let given = self.forward(limit, &mut moved);
        let Some(far) = self.far.as_ref().filter(|_| released || given) else { return moved };
        // Each end's line is written once, since the end looks at it all the time; and one barrier serves for
        // both wishes: it lasts until both lines have come.
        far.port().overrun.timed(Act::Touch, || self.rx.show());
        if released {
            self.tx.put_back(self.rx.first());
        }
        fence(Ordering::SeqCst);
        moved.room = released && self.tx.is_asked();
        if given {
            let due = far.port().overrun.timed(Act::Touch, || self.rx.is_asked());
            far.note();
            let mut outcome = Outcome::new();
            (outcome.frames, outcome.bytes) = (moved.frames as u64 - u64::from(moved.bad), moved.bytes);
            (outcome.occasions, outcome.interrupts) = (1, if due { far.raise() } else { 0 });
            moved.out = Some((far.port().counters.clone(), outcome));
        }
        moved
    }

    /// Writes what the sender has given up into the receiver's ring, at most `limit` frames. Whether there
    /// was something.
    #[inline]
    fn forward(&mut self, limit: usize, moved: &mut Moved) -> bool {
        let until = self.tx.last();
        let before = self.rx.next();
        self.looked = loop {
            let (frames, bytes) = self.rx.mirror_row(&self.tx, until, limit - moved.frames);
            moved.frames += frames;
            moved.bytes += bytes;
            let at = self.rx.next();
            if at == until || moved.frames == limit {
                break at;
            }
            let word = self.tx.access.slot(at);
            let sound = if word.flags() & NS_MOREFRAG == 0 {
                self.mirror(word, 0, &mut moved.bytes)
            } else {
                match self.chain(at, until, &mut moved.bytes) {
                    Some(sound) => sound,
                    None => break until,
                }
            };
            moved.frames += 1;
            moved.bad += u32::from(!sound);
        };
        self.rx.next() != before
    }

    /// Passes a frame of several slots from `at` on, if its last one is before `until`. False: one of them is
    /// bad.
    #[cold]
    fn chain(&mut self, at: u32, until: u32, bytes: &mut u64) -> Option<bool> {
        let (mut end, mut slots) = (at, 1);
        while self.tx.access.slot(end).flags() & NS_MOREFRAG != 0 {
            end = self.tx.access.after(end);
            slots += 1;
            if end == until {
                return None;
            }
        }
        let mut sound = true;
        let mut at = at;
        for left in (0..slots).rev() {
            let more = if left > 0 { NS_MOREFRAG } else { 0 };
            sound &= self.mirror(self.tx.access.slot(at), more, bytes);
            at = self.tx.access.after(at);
        }
        Some(sound)
    }

    /// Writes `word` into the receiver's next slot; without bytes if it is bad.
    #[inline]
    fn mirror(&mut self, word: SlotWord, flags: u16, bytes: &mut u64) -> bool {
        let sound = word.flags() & NS_INDIRECT == 0 && self.tx.is_sound(word);
        let word = if sound {
            *bytes += u64::from(word.len());
            SlotWord::new(word.buf_idx(), word.len(), flags)
        } else {
            SlotWord::new(0, 0, flags)
        };
        self.rx.mirror(word);
        sound
    }

    /// Takes what the receiver has released, for the sender. Whether there was something; `None`: no receiver
    /// is there, or none any more.
    #[inline]
    fn take_back(&mut self) -> Option<bool> {
        let far = self.far.as_ref()?;
        let from = self.rx.first();
        let released = far.port().overrun.timed(Act::Touch, || self.rx.accept());
        let truncated = self.rx.access.hands().is_truncated();
        if truncated || self.rx.access.is_lost() {
            far.port().fault.set(if truncated { Fault::MemoryTruncated } else { Fault::BadHead });
            self.rx.access.hands().clear();
            self.far = None;
            return None;
        }
        let to = self.rx.first();
        if self.rx.flags(from, to) & NS_BUF_CHANGED != 0 {
            self.exchange(from, to);
        }
        Some(released)
    }

    /// Gives the sender the buffers that the receiver put into slots from `from` to `to`.
    #[cold]
    fn exchange(&mut self, from: u32, to: u32) {
        let mut at = from;
        while at != to {
            let word = self.rx.access.slot(at);
            if word.flags() & NS_BUF_CHANGED != 0 {
                self.tx.exchange(at, word.buf_idx());
                self.rx.access.set_slot(at, SlotWord::new(word.buf_idx(), 0, 0));
            }
            at = self.rx.access.after(at);
        }
    }
}

/// The half of a direction that an end has: on which it sends (`SENDS`), or receives. Dropping it takes it
/// out.
pub struct Half<const SENDS: bool> {
    direction: Arc<Mutex<PipeDirection>>,
    number: u64,
}

/// The half on which an end sends.
pub type Sending = Half<true>;
/// The half on which an end receives.
pub type Receiving = Half<false>;

impl PipeDirection {
    /// A half's ring, and which half it is.
    fn half(&mut self, sends: bool) -> (&mut RingAccess<Hand>, &mut u64) {
        match sends {
            true => (&mut self.tx.access, &mut self.sender),
            false => (&mut self.rx.access, &mut self.receiver),
        }
    }
}

impl<const SENDS: bool> Half<SENDS> {
    pub(super) fn new(direction: &Arc<Mutex<PipeDirection>>) -> Half<SENDS> {
        let number = HALVES.fetch_add(1, Ordering::Relaxed);
        *crate::lock(direction).half(SENDS).1 = number;
        Half { direction: Arc::clone(direction), number }
    }

    /// The direction, if this is still its half.
    #[inline]
    fn ours(&self) -> Option<MutexGuard<'_, PipeDirection>> {
        Some(crate::lock(&self.direction))
            .filter(|direction| self.number == if SENDS { direction.sender } else { direction.receiver })
    }

    /// A guest has it, whose indices stand at `block`, which is filled in if the guest begins; with none it
    /// has no user. What a receiver releases counts from [`Receiving::show`] on.
    pub fn set_block(&mut self, block: Option<Block>, begins: bool) {
        let Some(mut direction) = self.ours() else { return };
        if !SENDS {
            direction.far = None;
        }
        direction.half(SENDS).0.hands().clear();
        let Some(mut block) = block else { return };
        // No core moves it meanwhile: that takes the sender's half, and no receiver is shown.
        let [sends, receives] = direction.positions();
        drop(direction);
        let position = if SENDS { sends } else { receives };
        if begins {
            block.begin(position);
        }
        // Its previous server may have ended before it said so.
        let [_, hwcur, hwtail] = position;
        block.publish(hwcur, hwtail);
        if !SENDS {
            block.withdraw();
        }
        let Some(mut direction) = self.ours() else { return };
        // What was found bad was another block's.
        let ring = direction.half(SENDS).0;
        ring.forget();
        ring.hands().set_guest(block);
    }

    /// What went wrong so far.
    pub fn stats(&self) -> Arc<RingStats> {
        Arc::clone(&crate::lock(&self.direction).half(SENDS).0.stats)
    }

    /// A program has it.
    pub fn set_program(&mut self) {
        if let Some(mut direction) = self.ours() {
            let ring = direction.half(SENDS).0;
            ring.forget();
            ring.hands().set_program();
        }
    }
}

impl<const SENDS: bool> Drop for Half<SENDS> {
    fn drop(&mut self) {
        let Some(mut direction) = self.ours() else { return };
        if !SENDS {
            direction.far = None;
        }
        let (ring, half) = direction.half(SENDS);
        ring.hands().clear();
        *half = 0;
    }
}

impl Sending {
    /// Moves what was given up and released since, at most `limit` frames.
    pub fn pass(&mut self, limit: usize) -> Moved {
        self.ours().map_or_else(Moved::default, |mut direction| direction.pass(limit))
    }

    /// Whether there is something to move.
    pub fn has_news(&mut self) -> bool {
        self.ours().is_some_and(|mut direction| direction.has_news())
    }

    /// Whether the sender's `head` makes no sense.
    pub fn is_lost(&self) -> bool {
        self.ours().is_some_and(|direction| direction.tx.access.is_lost())
    }

    /// Whether slots wait for the receiver: of what it does the sender's core is not told.
    pub fn waits(&self) -> bool {
        self.ours().is_some_and(|direction| direction.tx.first() != direction.tx.last())
    }

    /// Asks for kicks or declines them. After asking, true means that there is something to move.
    pub fn want_kicks(&mut self, on: bool) -> bool {
        let Some(mut direction) = self.ours() else { return false };
        match on {
            true => direction.tx.access.hands().ask(),
            false => direction.tx.access.hands().withdraw(),
        }
        on && direction.has_news()
    }
}

impl Receiving {
    /// Its user is told of frames by `far` from now on, and what it releases counts.
    pub fn show(&mut self, far: Arc<dyn Far>) {
        if let Some(mut direction) = self.ours() {
            direction.far = Some(far);
        }
    }

    /// No more: when this returns no core touches the receiver's memory.
    pub fn hide(&mut self) {
        if let Some(mut direction) = self.ours() {
            direction.far = None;
        }
    }

    /// Shows a guest whether the link is up, while the half is hidden.
    pub fn set_link(&mut self, up: bool) {
        let Some(mut block) = self.ours().and_then(|mut direction| direction.rx.access.hands().take_guest())
        else {
            return;
        };
        block.set_link(up);
        if let Some(mut direction) = self.ours() {
            direction.rx.access.hands().set_guest(block);
        }
    }
}
