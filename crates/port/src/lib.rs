//! Native programs as ports of a sidecore switch.
//!
//! Theory of operation. [`Port::attach`] asks the daemon for a port by name and maps the memory that it gets:
//! rings in netmap's format, which the port's I/O core polls. To send is to fill slots ([`TxRing::push`]) and
//! to move an index ([`TxRing::sync`]); to receive is to see an index moved ([`RxRing::sync`]), to look at
//! frames where they are ([`RxRing::take`]), and to give their slots back at the next sync. None of that is a
//! system call, unless the engine's core sleeps and has to be woken. A program that has nothing to do sleeps
//! in [`Port::wait`], or in a loop of its own on the descriptors ([`TxRing::arm`], [`RxRing::arm`]).
//!
//! What does not fit into the receiver's ring is dropped there and counted; a sender is held up by nothing
//! but its own ring. When the daemon ends, or the port goes, [`Port::is_attached`] says so, and
//! [`Port::reattach`] starts anew. The memory of a port that is another user's goes with it and reads as
//! zeros then: rings look as if nothing more came.
//!
//! ```no_run
//! use sidecore_port::{Interest, Port};
//!
//! let mut port = Port::attach("p1")?;
//! port.tx[0].push(&[0xff; 60]);
//! port.tx[0].sync()?;
//! while port.wait(Interest::RECEIVE, None)? {
//!     while let Some(frame) = port.rx[0].take() {
//!         println!("{} bytes", frame.len());
//!     }
//!     port.rx[0].sync()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attach;
pub mod link;
pub mod map;
mod pipe;
mod rx;
mod tx;
pub mod vale;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sidecore_abi::ring::{Info, Nonsense, SEES_RECEIVED, SEES_SENT};

pub use attach::AttachError;
pub use rx::{Received, RxRing};
pub use tx::TxRing;

/// The engine found an impossible index in a ring and reset it to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring was reset: {}", .0.name())]
pub struct Reset(pub Nonsense);

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    receive: bool,
    send: bool,
}

impl Interest {
    /// Frames that have come.
    pub const RECEIVE: Interest = Interest { receive: true, send: false };
    /// Room to send.
    pub const SEND: Interest = Interest { receive: false, send: true };
    /// Either.
    pub const BOTH: Interest = Interest { receive: true, send: true };
}

/// What a monitor sees of its port.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// What the port's client sends.
    Sent = SEES_SENT,
    /// What it receives.
    Received = SEES_RECEIVED,
    /// Both.
    Both = SEES_SENT | SEES_RECEIVED,
}

/// How a port was attached to.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Client,
    WithHost,
    Monitor(Sees),
}

/// An attached port. Its rings may be taken out and used on other threads; the port must outlive their use,
/// since it holds the connection by which it stays attached.
#[derive(Debug)]
pub struct Port {
    name: String,
    kind: Kind,
    control: std::os::unix::net::UnixStream,
    /// What keeps the port if it was made on demand.
    lease: Option<vale::Vale>,
    info: Info,
    /// Rings on which we send.
    pub tx: Vec<TxRing>,
    /// Rings on which we receive.
    pub rx: Vec<RxRing>,
    /// Host rings on which we send, if the port has some (`ring:NAME^` in the daemon's configuration).
    pub host_tx: Vec<TxRing>,
    /// Host rings on which we receive.
    pub host_rx: Vec<RxRing>,
}

impl Port {
    /// Attaches to the ring port `name`, or to the one whose socket is at `name` if that has a slash. A port
    /// with a name of VALE's, `valeS:P`, is made if it is not there, with switch S, and goes with its last
    /// user. `NAME{P` and `NAME}P` are the two ends of pipe P of port `NAME`: what one sends the other
    /// receives, frames stay where they are, and none is lost.
    ///
    /// # Errors
    /// There is no such port, it is taken, or it refuses.
    pub fn attach(name: &str) -> Result<Port, AttachError> {
        Ok(Port::new(name, Kind::Client, attach::attach(name)?))
    }

    /// As [`Port::attach`], and if the port has no host rings it gets some, which lead to a TAP interface of
    /// its name and go with their last user.
    ///
    /// # Errors
    /// There is no such port, it is taken, or it refuses; the interface cannot be made.
    pub fn attach_with_host(name: &str) -> Result<Port, AttachError> {
        Ok(Port::new(name, Kind::WithHost, attach::attach_with_host(name)?))
    }

    /// Becomes a monitor of port `name`, which another program may have: copies of what that sends or
    /// receives come in [`Port::rx`], and there are no rings to send on. A monitor that is too slow loses
    /// frames; `show queues` counts them.
    ///
    /// # Errors
    /// There is no such port, or it refuses.
    pub fn monitor(name: &str, sees: Sees) -> Result<Port, AttachError> {
        Ok(Port::new(name, Kind::Monitor(sees), attach::monitor(name, sees as u32)?))
    }

    fn new(name: &str, kind: Kind, attached: attach::Attached) -> Port {
        let attach::Attached { control, lease, map, tx, rx, host } = attached;
        let sending = |links: Vec<link::Link>| links.into_iter().map(TxRing::new).collect();
        let receiving = |links: Vec<link::Link>| links.into_iter().map(RxRing::new).collect();
        Port {
            name: name.to_owned(),
            kind,
            control,
            lease,
            info: *map.info(),
            tx: sending(tx),
            rx: receiving(rx),
            host_tx: sending(host.0),
            host_rx: receiving(host.1),
        }
    }

    /// What the port is like.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Whether the daemon still holds its end.
    pub fn is_attached(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let mut byte = [0];
        matches!(rustix::net::recv(&self.control, &mut byte, flags), Err(Errno::AGAIN | Errno::INTR))
    }

    /// Attaches anew after the daemon has ended and started again; frames in the old rings are lost.
    ///
    /// # Errors
    /// As [`Port::attach`]; the port stays as it was, to be tried again.
    pub fn reattach(&mut self) -> Result<(), AttachError> {
        // Ours may be the connection that keeps the port busy.
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        self.lease = None;
        *self = match self.kind {
            Kind::Client => Port::attach(&self.name)?,
            Kind::WithHost => Port::attach_with_host(&self.name)?,
            Kind::Monitor(sees) => Port::monitor(&self.name, sees)?,
        };
        Ok(())
    }

    /// Syncs all rings that are asked about, and sleeps until one of them has frames or room. False after
    /// `timeout`; `None` waits for ever. A signal ends the sleep early, as if something had come.
    ///
    /// # Errors
    /// The daemon is gone, or a ring was reset, or what `poll` says.
    pub fn wait(&mut self, interest: Interest, timeout: Option<Duration>) -> Result<bool, WaitError> {
        self.sync(interest)?;
        let mut ready = false;
        if interest.receive {
            self.receiving().for_each(|ring| ready |= ring.arm());
        }
        if interest.send {
            self.sending().for_each(|ring| ready |= ring.arm());
        }
        let result = if ready { Ok(true) } else { self.sleep(interest, timeout) };
        if interest.receive {
            self.receiving().for_each(RxRing::disarm);
        }
        if interest.send {
            self.sending().for_each(TxRing::disarm);
        }
        self.sync(interest)?;
        result
    }

    fn receiving(&mut self) -> impl Iterator<Item = &mut RxRing> {
        self.rx.iter_mut().chain(&mut self.host_rx)
    }

    fn sending(&mut self) -> impl Iterator<Item = &mut TxRing> {
        self.tx.iter_mut().chain(&mut self.host_tx)
    }

    fn sync(&mut self, interest: Interest) -> Result<(), Reset> {
        if interest.receive {
            self.receiving().try_for_each(RxRing::sync)?;
        }
        if interest.send {
            self.sending().try_for_each(TxRing::sync)?;
        }
        Ok(())
    }

    fn sleep(&self, interest: Interest, timeout: Option<Duration>) -> Result<bool, WaitError> {
        let mut fds = vec![PollFd::new(&self.control, PollFlags::IN)];
        if interest.receive {
            let rings = self.rx.iter().chain(&self.host_rx);
            fds.extend(rings.map(|ring| PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::IN)));
        }
        if interest.send {
            let rings = self.tx.iter().chain(&self.host_tx);
            fds.extend(rings.map(|ring| PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::IN)));
        }
        let timeout = timeout.map(|t| Timespec::try_from(t).unwrap_or(FOR_EVER));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Ok(false),
            // Unasked, the daemon says nothing: it is gone.
            Ok(_) if !fds[0].revents().is_empty() => Err(WaitError::Gone),
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(error) => Err(WaitError::System(error.into())),
        }
    }
}

/// Longer than anything lives.
const FOR_EVER: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };

/// Why waiting ended without what was waited for.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The daemon has ended: [`Port::reattach`] starts anew.
    #[error("the daemon is gone")]
    Gone,
    /// A ring was reset.
    #[error(transparent)]
    Reset(#[from] Reset),
    /// The system refused.
    #[error("cannot wait: {0}")]
    System(#[from] io::Error),
}

/// Asks the cache for a line, to be read soon.
#[inline]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
