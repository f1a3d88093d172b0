//! The pcapng format (draft-ietf-opsawg-pcapng), as much of it as a capture needs: little-endian, times
//! in nanoseconds, Ethernet.
//!
//! Each block is its type, its length, a body and its length again; everything is padded to four bytes.

use std::fmt;
use std::io::Write;

use sidecore_abi::counters::DropReason;

use crate::mem::Piece;
use crate::packet::{Frame, Gso};

/// What can be chosen about a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Most bytes of a frame to keep.
    pub snaplen: u32,
    /// Bytes that may wait to be read; twice this much memory is used.
    pub buffer: usize,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        // The snaplen of tcpdump; more than any frame has.
        CaptureOptions { snaplen: 262_144, buffer: 4 << 20 }
    }
}

crate::util::form::view! {
    /// Counts of a capture.
    #[derive(Copy, Default)]
    CaptureCount {
        /// Frames of the port.
        frames: u64,
        /// Frames that the capture lacks.
        lost: u64,
    }
}

/// Which way a frame goes, as `epb_flags` has it (pcapng §4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the switch.
    Inbound = 1,
    /// Out of the switch.
    Outbound = 2,
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// Longest comment, a multiple of four.
const COMMENT: usize = 48;
/// Bytes of a packet block beside the frame's own, at most: 32 of type, lengths and time, padding, the
/// flags, two comments, the end of options.
pub(super) const PACKET_OVERHEAD: usize = 32 + 3 + 8 + 2 * (4 + COMMENT) + 4;

/// Nanoseconds since 1970.
pub(super) type Time = u64;

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let len = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&len);
    out.extend(len);
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend(&[0; 3][..len.next_multiple_of(4) - len]);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend(code.to_le_bytes());
    out.extend(u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    out.extend(value);
    pad(out, value.len());
}

/// A time as blocks and options have it: the high half first, whatever the byte order.
fn halves(time: Time) -> [u8; 8] {
    time.rotate_left(32).to_le_bytes()
}

/// The stream's beginning: the section, and an interface for each name.
pub(super) fn head(names: &[&str], snaplen: u32) -> Vec<u8> {
    let mut out = Vec::new();
    block(&mut out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0, of unknown length.
        out.extend([1, 0, 0, 0]);
        out.extend([0xff; 8]);
        option(out, SHB_USERAPPL, concat!("sidecore ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(out, OPT_END, &[]);
    });
    for name in names {
        block(&mut out, INTERFACE_DESCRIPTION, |out| {
            out.extend(ETHERNET.to_le_bytes());
            out.extend([0; 2]);
            out.extend(snaplen.to_le_bytes());
            option(out, IF_NAME, name.as_bytes());
            option(out, IF_TSRESOL, &[9]);
            option(out, OPT_END, &[]);
        });
    }
    out
}

/// One frame.
pub(super) struct Packet<'a> {
    pub(super) interface: u32,
    pub(super) time: Time,
    pub(super) direction: Direction,
    pub(super) frame: &'a Frame,
    pub(super) body: &'a [Piece],
    pub(super) dropped: Option<DropReason>,
    /// How many of its bytes to keep.
    pub(super) keep: usize,
}

impl Packet<'_> {
    /// Appends it: `keep + PACKET_OVERHEAD` bytes at most.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        block(out, ENHANCED_PACKET, |out| {
            out.extend(self.interface.to_le_bytes());
            out.extend(halves(self.time));
            out.extend(u32::try_from(self.keep).unwrap_or(0).to_le_bytes());
            out.extend(self.frame.len.to_le_bytes());
            self.bytes(out);
            pad(out, self.keep);
            option(out, EPB_FLAGS, &(self.direction as u32).to_le_bytes());
            self.comments(out);
            option(out, OPT_END, &[]);
        });
    }

    fn bytes(&self, out: &mut Vec<u8>) {
        let head = self.frame.head_len().min(self.keep);
        out.extend(&self.frame.head[..head]);
        let mut at = out.len();
        out.resize(at + self.keep - head, 0);
        for piece in self.body {
            at += piece.read(&mut out[at..]);
        }
    }

    fn comments(&self, out: &mut Vec<u8>) {
        if let Some(reason) = self.dropped {
            comment(out, format_args!("dropped: {}", reason.name()));
        }
        let kind = match self.frame.offload.gso {
            Gso::None => return,
            Gso::Tcp4 => "tcpv4",
            Gso::Tcp6 => "tcpv6",
            Gso::Udp4 => "udpv4",
            Gso::Udp6 => "udpv6",
            Gso::Ufo => "udp-fragments",
        };
        comment(out, format_args!("gso {kind} size={}", self.frame.offload.gso_size));
    }
}

/// Appends a comment of at most [`COMMENT`] bytes.
fn comment(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    let mut bytes = [0; COMMENT];
    let mut rest = &mut bytes[..];
    // Fails only if the array is full: then the comment is cut.
    let _ = rest.write_fmt(text);
    let left = rest.len();
    option(out, OPT_COMMENT, &bytes[..COMMENT - left]);
}

/// Appends the statistics of one interface, from its beginning to now.
pub(super) fn statistics(
    out: &mut Vec<u8>,
    interface: u32,
    (started, ended): (Time, Time),
    count: CaptureCount,
) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend(interface.to_le_bytes());
        out.extend(halves(ended));
        option(out, ISB_STARTTIME, &halves(started));
        option(out, ISB_ENDTIME, &halves(ended));
        option(out, ISB_IFRECV, &count.frames.to_le_bytes());
        option(out, ISB_IFDROP, &count.lost.to_le_bytes());
        option(out, OPT_END, &[]);
    });
}
