//! Tags on the way out: frames get the form that their receiver has for their VLAN.
//!
//! Theory of operation. A frame that needs a tag, or must lose one, is described once more in a batch of our
//! own: the new head is private memory, as every head is, and the body is described where it lies. Where a
//! tag moves four bytes out of the head, they lie in a slot of our own. Checksum and segmentation requests go
//! with the frame, their offsets moved.

use crate::mem::{Arena, Pieces};
use crate::packet::{stretch, Batch, Frame, HEAD, MAX_BATCH};
use crate::policy::{Form, InVlan};
use crate::util::slice::behind;

/// Where a tag stands: behind the addresses (802.1Q §9.3).
const AT: usize = 12;
const TAG: usize = 4;

/// Frames in another form.
pub(super) struct Retagged {
    pub(super) batch: Batch,
    /// Bytes that a tag moved out of the head.
    moved: Arena,
}

impl Retagged {
    pub(super) fn new() -> Retagged {
        Retagged { batch: Batch::new(), moved: Arena::new(MAX_BATCH, TAG) }
    }

    /// Appends `frame` of `from`, which is in VLAN `of`, in `form`. False if there is no room.
    pub(super) fn push(&mut self, from: &Batch, frame: &Frame, of: InVlan, form: Form) -> bool {
        let slot = self.batch.len();
        let old = if of.has_tag() { TAG } else { 0 };
        let mut head = [0; HEAD];
        let (addresses, rest) = head.split_at_mut(AT);
        addresses.copy_from_slice(&frame.head[..AT]);
        let new = match form {
            Form::Untagged => 0,
            Form::Tagged(protocol) => {
                let priority = if old > 0 { frame.head[AT + 2] & 0xf0 } else { 0 };
                let [high, low] = of.number().to_be_bytes();
                let [a, b] = protocol.bytes();
                rest[..TAG].copy_from_slice(&[a, b, priority | high, low]);
                TAG
            }
        };
        let taken = AT + old + from.read(frame, AT + old, &mut rest[new..]);
        let len = frame.len as usize - old + new;
        let moved = behind(frame.head(), taken);
        let piece = (!moved.is_empty()).then(|| self.moved.put(slot, moved, 0));
        let offload = frame.offload.moved(old, new);
        let body = stretch(from.body(frame), taken.max(HEAD), frame.len as usize);
        let add = |pieces: &mut Pieces| piece.into_iter().chain(body).all(|piece| pieces.push(piece));
        self.batch.push_with(&head, len, offload, add)
    }
}
