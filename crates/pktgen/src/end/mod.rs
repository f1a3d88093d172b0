//! The ports that pkt-gen can use. Each is a set of lanes: a queue to send on and one to receive from, driven
//! by one thread. The loops are compiled for each kind of lane, so a frame costs no dynamic dispatch.

pub mod host;
pub mod ring;
pub mod vhost;

use std::time::Duration;

/// Errors are texts for people: the loops end with the first one.
pub type Result<T> = std::result::Result<T, String>;

/// Where frames to be sent come from.
pub trait Source {
    /// The length of every frame, if all are the same bytes: then a buffer is written once and sent again and
    /// again.
    fn fixed(&self) -> Option<usize> {
        None
    }

    /// Writes the next frame to the start of `buffer`, which is large enough; its length.
    fn write(&mut self, buffer: &mut [u8]) -> usize;
}

/// What looks at received frames.
pub trait Sink {
    /// Whether it reads bytes: if not, frames are counted where they are and their bytes stay out of this
    /// processor's cache.
    const READS: bool;

    /// A frame.
    fn frame(&mut self, bytes: &[u8]);
}

/// Leaves frames where they are.
pub struct Blind;

impl Sink for Blind {
    const READS: bool = false;

    fn frame(&mut self, _: &[u8]) {}
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Room to send.
    Room,
    /// Frames that have come.
    Frames,
}

/// What was taken at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// How many frames.
    pub frames: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// A queue to send on and one to receive from.
pub trait Lane: Send {
    /// Frames that the empty queue has room for.
    fn depth(&self) -> usize;

    /// Frames that there is room for now.
    fn room(&mut self) -> Result<usize>;

    /// Sends at most `limit` frames; how many found room.
    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken>;

    /// Whether the other side has taken everything that was sent.
    fn is_drained(&mut self) -> Result<bool>;

    /// Takes at most `limit` frames.
    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken>;

    /// Sleeps until there may be what is wanted, or `limit` is over. An error if the other side is gone.
    /// Lanes without interrupts are polled.
    fn sleep(&mut self, _want: Want, _limit: Duration) -> Result<()> {
        Ok(())
    }
}

/// An opened port.
pub struct Opened<L> {
    /// One for each thread.
    pub lanes: Vec<L>,
    /// Queues that the port has.
    pub queues: usize,
    /// Whatever has to stay while the lanes are used.
    pub keep: Box<dyn Send>,
}

/// A port's name as given with `-i`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortAddress {
    /// A ring port by name or path.
    Ring(String),
    /// A vhost-user socket.
    VhostUser {
        /// Where.
        path: String,
        /// Whether we listen there.
        server: bool,
    },
    /// An interface of the host.
    Host {
        /// How it is reached.
        kind: host::Kind,
        /// Its name.
        interface: String,
    },
}

impl PortAddress {
    /// What `-i` says.
    pub fn parse(text: &str) -> Result<PortAddress> {
        if text.starts_with("vale") {
            return Ok(PortAddress::Ring(text.to_owned()));
        }
        // A path may have colons; a bare name is netmap's.
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) if !kind.contains('/') => (kind, rest),
            _ => ("netmap", text),
        };
        if rest.is_empty() {
            return Err(format!("-i {text}: a name is missing"));
        }
        match kind {
            "netmap" | "ring" => ring_name(rest),
            "vhost-user" => {
                let (path, role) = rest.split_once(',').unwrap_or((rest, "role=client"));
                let server = match role {
                    "role=client" => false,
                    "role=server" => true,
                    _ => return Err(format!("-i {text}: {role:?} is neither role=client nor role=server")),
                };
                Ok(PortAddress::VhostUser { path: path.to_owned(), server })
            }
            "tap" => Ok(PortAddress::Host { kind: host::Kind::Tap, interface: rest.to_owned() }),
            "xdp" => Ok(PortAddress::Host { kind: host::Kind::Xdp, interface: rest.to_owned() }),
            "packet" => Ok(PortAddress::Host { kind: host::Kind::Packet, interface: rest.to_owned() }),
            _ => Err(format!(
                "-i {text}: no such kind of port; there are netmap:NAME (or ring:NAME), valeS:NAME, \
                 vhost-user:PATH, tap:IFNAME, xdp:IFNAME, packet:IFNAME"
            )),
        }
    }
}

/// The port of a name to which none of netmap's suffixes applies: a thread takes the ring of its number.
fn ring_name(name: &str) -> Result<PortAddress> {
    match name.find(['^', '*', '{', '}', '@']).filter(|_| !name.contains('/')) {
        Some(at) => Err(format!(
            "-i {name}: {:?} does not apply to pkt-gen; give the port's name alone, and -p for several rings",
            &name[at..]
        )),
        None => Ok(PortAddress::Ring(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_addresses() {
        let ring = |name: &str| Ok(PortAddress::Ring(name.to_owned()));
        assert_eq!(PortAddress::parse("a"), ring("a"));
        assert_eq!(PortAddress::parse("netmap:a"), ring("a"));
        assert_eq!(PortAddress::parse("ring:a"), ring("a"));
        assert_eq!(PortAddress::parse("vale0:b"), ring("vale0:b"));
        assert_eq!(PortAddress::parse("/run/x:y"), ring("/run/x:y"));
        assert_eq!(PortAddress::parse("netmap:/run/x"), ring("/run/x"));
        let vhost = |server| Ok(PortAddress::VhostUser { path: "/a".into(), server });
        assert_eq!(PortAddress::parse("vhost-user:/a"), vhost(false));
        assert_eq!(PortAddress::parse("vhost-user:/a,role=client"), vhost(false));
        assert_eq!(PortAddress::parse("vhost-user:/a,role=server"), vhost(true));
        let host = |kind, interface: &str| Ok(PortAddress::Host { kind, interface: interface.to_owned() });
        assert_eq!(PortAddress::parse("tap:t0"), host(host::Kind::Tap, "t0"));
        assert_eq!(PortAddress::parse("xdp:eth0"), host(host::Kind::Xdp, "eth0"));
        assert_eq!(PortAddress::parse("packet:eth0"), host(host::Kind::Packet, "eth0"));
        for bad in [
            "",
            "vhost-user:/a,mode=5",
            "tap:",
            "netmap:",
            "usb:x",
            "netmap:a^",
            "a{1",
            "netmap:a@conf:slots=8",
        ] {
            assert!(PortAddress::parse(bad).is_err(), "{bad}");
        }
    }
}
