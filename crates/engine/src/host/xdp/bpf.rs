//! The XDP program that hands frames to our sockets, and the few calls of bpf(2) that load it.
//!
//! Invariant of the `unsafe` here: each call gets an attribute block of exactly the layout and length that
//! its command reads (`union bpf_attr` of linux/bpf.h; what lies behind is zero by the call's own contract),
//! and every address in it leads to memory that outlives the call. A descriptor that a call returns is new
//! and owned by the caller alone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::c_int;

use crate::sandbox::open::broker::{have_done, obtain, Request};

/// One instruction: operation, registers (destination low, source high), offset, number (RFC 9669 §3).
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

/// Opcodes (RFC 9669 §4 to §5.4).
const LOAD_WORD: u8 = 0x61; // dst = *(u32 *)(src + offset)
const LOAD_CONST: u8 = 0x18; // dst = 64-bit number, two instructions long; source 1: a map
const SET: u8 = 0xb7; // dst = number
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// A map's descriptor stands where the number would be.
const MAP: u8 = 1 << 4;
/// Offset of `rx_queue_index` in `struct xdp_md`.
const QUEUE: i16 = 16;
/// `bpf_redirect_map(map, key, flags)`.
const REDIRECT_MAP: i32 = 51;
/// The verdict that leaves a frame to the host.
const XDP_PASS: i32 = 2;

/// The program: `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)`. The low bits of the flags
/// are the verdict if the map has no socket for the queue (since Linux 5.3).
fn program(map: RawFd) -> [Instruction; 6] {
    [
        Instruction(LOAD_WORD, 2 | 1 << 4, QUEUE, 0), // r2 = r1->rx_queue_index
        Instruction(LOAD_CONST, 1 | MAP, 0, map),     // r1 = sockets
        Instruction(0, 0, 0, 0),                      //      (its upper half)
        Instruction(SET, 3, 0, XDP_PASS),             // r3 = XDP_PASS
        Instruction(CALL, 0, 0, REDIRECT_MAP),        // r0 = bpf_redirect_map(r1, r2, r3)
        Instruction(EXIT, 0, 0, 0),                   // return r0
    ]
}

/// Commands, kinds and flags of linux/bpf.h and linux/if_link.h.
const MAP_CREATE: c_int = 0;
const MAP_UPDATE: c_int = 2;
const PROG_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;

#[repr(C)]
struct MapUpdate {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `T` is what `command` reads, and addresses in it are good.
unsafe fn bpf<T>(command: c_int, attr: &T) -> io::Result<c_int> {
    let at: *const T = attr;
    // SAFETY: a live `T` of that length; the caller vouches for the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    match c_int::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A command of bpf(2) that makes a descriptor.
///
/// # Safety
/// As for [`bpf`].
unsafe fn bpf_fd<T>(command: c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the descriptor is new.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attr)?)) }
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// The map from a queue's number to the socket that gets its frames.
pub(super) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    obtain(&Request::Sockets { queues }, &[], || socket_map_here(queues))
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn socket_map_here(queues: u32) -> io::Result<OwnedFd> {
    // Its type, bytes of a key and of a value, entries.
    let attr = [MAP_TYPE_XSKMAP, 4, 4, queues];
    // SAFETY: what the command reads.
    unsafe { bpf_fd(MAP_CREATE, &attr) }
}

/// Puts a bound socket into the map.
pub(super) fn put_socket(map: &OwnedFd, queue: u32, socket: &OwnedFd) -> io::Result<()> {
    let fds = [map.as_fd(), socket.as_fd()];
    have_done(&Request::Enter { queue }, &fds, || put_socket_here(map, queue, socket))
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn put_socket_here(map: &OwnedFd, queue: u32, socket: &OwnedFd) -> io::Result<()> {
    let (key, value) = (queue.to_ne_bytes(), number(socket).to_ne_bytes());
    let attr = MapUpdate {
        map: number(map),
        pad: 0,
        key: key.as_ptr() as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    // SAFETY: what the command reads; key and value have the four bytes that the map was made for.
    unsafe { bpf(MAP_UPDATE, &attr) }.map(drop)
}

/// Loads the program for the sockets in `map`. The kernel verifies it.
fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
    let instructions = program(map.as_raw_fd());
    let license = c"MIT OR Apache-2.0";
    let mut name = [0; 16];
    name[..8].copy_from_slice(b"sidecore");
    let attr = ProgLoad {
        kind: PROG_TYPE_XDP,
        count: u32::try_from(instructions.len()).unwrap_or(0),
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        name,
        attach: ATTACH_XDP,
        ..ProgLoad::default()
    };
    // SAFETY: what the command reads; program and license outlive the call.
    unsafe { bpf_fd(PROG_LOAD, &attr) }
}

/// Attaches the program for the sockets in `map` to the interface `name`, which has the number `index`, until
/// the link that this returns is closed. The kernel closes it for a killed daemon, which so leaves nothing
/// behind. Native means in the driver, otherwise in the stack.
pub(super) fn attach(map: &OwnedFd, name: &str, index: c_int, native: bool) -> io::Result<OwnedFd> {
    let request = Request::Attach { name: name.to_owned(), native };
    obtain(&request, &[map.as_fd()], || attach_here(map, index, native))
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn attach_here(map: &OwnedFd, interface: c_int, native: bool) -> io::Result<OwnedFd> {
    let program = &load(map)?;
    let flags = if native { FLAG_NATIVE } else { FLAG_GENERIC };
    let attr = [number(program), interface.unsigned_abs(), ATTACH_XDP, flags];
    // SAFETY: what the command reads.
    unsafe { bpf_fd(LINK_CREATE, &attr) }
}
