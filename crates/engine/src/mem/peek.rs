//! Options of sockets for which libraries have no call. How far a stream socket has been looked at: the one number that
//! the kernel keeps beside its bytes. Whether its peers may send descriptors.
//!
//! Theory of operation. With SO_PEEK_OFF (unix(7), socket(7)) each look (`MSG_PEEK`) begins where the last one ended, and
//! taking bytes out moves the place back by as many. So a message that was looked at as a whole leaves its length
//! there, and taking it leaves zero: a process that inherits the socket can tell whether a message that was answered is
//! still to be taken.
//!
//! With SO_PASSRIGHTS switched off (Linux 6.16) a sender of descriptors gets EPERM, and what is accepted from a
//! listening socket has the same.
//!
//! Invariant of the `unsafe` here: each call gets a pointer to a live local `c_int` and its size.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, socklen_t};

/// Bytes of one `c_int`.
#[expect(clippy::cast_possible_truncation, reason = "four")]
const SIZE: socklen_t = size_of::<c_int>() as socklen_t;

/// Sets the place from which the next look begins.
///
/// # Errors
/// It is no Unix socket, or the number is absurd.
pub fn set_peeked(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    set(socket, libc::SO_PEEK_OFF, c_int::try_from(bytes).map_err(io::Error::other)?)
}

/// Lets no peer of `socket` send descriptors, where the kernel knows how: none are wanted there. Without it they are
/// dropped unseen, since no read has room for them.
pub fn take_no_descriptors(socket: impl AsFd) {
    /// Of asm-generic/socket.h; x86 and ARM have no other.
    const SO_PASSRIGHTS: c_int = 83;
    // Before Linux 6.16 it does not exist.
    let _ = set(socket, SO_PASSRIGHTS, 0);
}

fn set(socket: impl AsFd, option: c_int, value: c_int) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` lives through the call and is of the size that is given.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), SIZE) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// That place; zero if it was never set.
///
/// # Errors
/// It is no Unix socket.
pub fn peeked(socket: impl AsFd) -> io::Result<usize> {
    let (mut value, mut size): (c_int, socklen_t) = (0, SIZE);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: both locals live through the call, and `size` is that of `value`.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, (&raw mut value).cast(), &raw mut size)
    };
    if result == 0 {
        Ok(usize::try_from(value).unwrap_or(0))
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::net::{recv, RecvFlags};

    use super::*;

    #[test]
    fn it_moves_with_looking_and_with_taking() {
        let (mut from, mut to) = UnixStream::pair().unwrap();
        assert_eq!(peeked(&to).unwrap(), 0);
        set_peeked(&to, 0).unwrap();
        from.write_all(&[1; 20]).unwrap();
        from.write_all(&[2; 10]).unwrap();
        let mut bytes = [0; 25];
        let look = |bytes: &mut [u8]| recv(&to, bytes, RecvFlags::PEEK).unwrap().0;
        assert_eq!((look(&mut bytes), peeked(&to).unwrap()), (25, 25));
        assert_eq!((look(&mut bytes), peeked(&to).unwrap()), (5, 30));
        set_peeked(&to, 20).unwrap();
        to.read_exact(&mut bytes[..20]).unwrap();
        assert_eq!((peeked(&to).unwrap(), bytes[19]), (0, 1));
    }
}
