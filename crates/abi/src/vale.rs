//! What netmap's programs ask of the kernel beyond one port: to make ports on demand, and `vale-ctl`'s verbs.
//!
//! One socket takes these requests, whatever the name: the file `.netmap` in the directory of the ring ports'
//! sockets. It stands for `/dev/netmap` where that is not about a port that exists. A connection is a
//! *lease*: ports that were made because it asked for them ([`Verb::Open`]) stay for as long as one
//! connection that asked for them is open. A request is one message of [`ASK`] bytes, its reply one of
//! [`REPLY`] bytes.

use crate::bytes::{Reader, Writer};

/// The socket's file name.
pub const SOCKET: &str = ".netmap";

/// The file beside it where operators tell the daemon's broker, which keeps the privileges, what the daemon
/// may have: a datagram of one letter and what is meant, `i` and the name of an interface for one.
pub const OPERATORS: &str = ".operators";
/// Bytes of a request.
pub const ASK: usize = 128;
/// Bytes of a reply.
pub const REPLY: usize = 512;
/// Longest name, with its closing zero (`NETMAP_REQ_IFNAMSIZ`).
pub const NAME: usize = 64;
/// Longest text of a refusal.
pub const TEXT: usize = REPLY - 24 - NAME;
/// First word of a message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"vale");
/// Version of the messages.
pub const VERSION: u32 = 1;

/// What is asked.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// That a port be there, made if need be, for as long as this connection lasts. The reply names the ring
    /// port.
    Open = 1,
    /// The first port at or after a place, or with a name the place of that port.
    List = 2,
    /// To make a port that stays.
    NewIf = 3,
    /// To remove such a port.
    DelIf = 4,
    /// To join a port to a switch.
    Attach = 5,
    /// To part it from that switch.
    Detach = 6,
    /// To have it polled.
    PollingOn = 7,
    /// To have it polled no more.
    PollingOff = 8,
}

impl Verb {
    /// The verb with this number.
    pub const fn from_code(code: u32) -> Option<Verb> {
        Some(match code {
            1 => Verb::Open,
            2 => Verb::List,
            3 => Verb::NewIf,
            4 => Verb::DelIf,
            5 => Verb::Attach,
            6 => Verb::Detach,
            7 => Verb::PollingOn,
            8 => Verb::PollingOff,
            _ => return None,
        })
    }
}

/// A request. What a verb does not need is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is asked, as [`Verb`].
    pub verb: u32,
    /// The port, ended by a zero.
    pub name: [u8; NAME],
    /// Slots of rings on which the client sends; 0: as usual.
    pub tx_slots: u32,
    /// Slots of rings on which it receives; 0: as usual.
    pub rx_slots: u32,
    /// Rings on which it sends; 0: as usual.
    pub tx_rings: u32,
    /// Rings on which it receives; 0: as usual.
    pub rx_rings: u32,
    /// With [`Verb::List`], the switch's number; with polling, the first processor.
    pub first: u32,
    /// With [`Verb::List`], the port's number; with polling, how many processors.
    pub second: u32,
    /// With [`Verb::Attach`] and polling, netmap's `nr_mode`.
    pub mode: u32,
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// 0, or why not, as netmap has it.
    pub errno: u32,
    /// Number of the switch.
    pub switch: u32,
    /// Number of the port in the switch.
    pub port: u32,
    /// Name of the port, ended by a zero.
    pub name: [u8; NAME],
    /// For people: why not, and what to do; ended by a zero.
    pub text: [u8; TEXT],
}

/// `text` as a field of `N` bytes, cut to what fits with a closing zero.
pub fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let mut len = text.len().min(N - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

/// The text in a field up to its zero; `None` if there is no zero or it is not UTF-8.
pub fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    core::str::from_utf8(&field[..end]).ok()
}

impl Ask {
    /// `verb` about port `name`, everything else as usual. A name that is too long is cut.
    pub fn new(verb: Verb, name: &str) -> Ask {
        Ask {
            verb: verb as u32,
            name: field(name),
            tx_slots: 0,
            rx_slots: 0,
            tx_rings: 0,
            rx_rings: 0,
            first: 0,
            second: 0,
            mode: 0,
        }
    }

    /// As a message.
    pub fn to_bytes(self) -> [u8; ASK] {
        let mut writer = Writer::<ASK>::new(MAGIC, VERSION);
        writer.u32(self.verb);
        writer.u32(0);
        writer.raw(&self.name);
        let Ask { tx_slots, rx_slots, tx_rings, rx_rings, first, second, mode, .. } = self;
        [tx_slots, rx_slots, tx_rings, rx_rings, first, second, mode].into_iter().for_each(|w| writer.u32(w));
        writer.bytes
    }

    /// From a message; `None` if it is of another length, kind or version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Ask> {
        let mut reader = Reader::<ASK>::new(bytes, MAGIC, VERSION)?;
        let verb = reader.u32();
        let _ = reader.u32();
        let name = reader.raw();
        let [tx_slots, rx_slots, tx_rings, rx_rings, first, second, mode] =
            core::array::from_fn(|_| reader.u32());
        Some(Ask { verb, name, tx_slots, rx_slots, tx_rings, rx_rings, first, second, mode })
    }
}

impl Reply {
    /// That it is so, about port `name`.
    pub fn done(name: &str, switch: u32, port: u32) -> Reply {
        Reply { errno: 0, switch, port, name: field(name), text: [0; TEXT] }
    }

    /// That it cannot be.
    pub fn refused(errno: u32, why: &str) -> Reply {
        Reply { errno, switch: 0, port: 0, name: [0; NAME], text: field(why) }
    }

    /// As a message.
    pub fn to_bytes(self) -> [u8; REPLY] {
        let mut writer = Writer::<REPLY>::new(MAGIC, VERSION);
        [self.errno, self.switch, self.port, 0].into_iter().for_each(|word| writer.u32(word));
        writer.raw(&self.name);
        writer.raw(&self.text);
        writer.bytes
    }

    /// From a message; `None` if it is of another length, kind or version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Reply> {
        let mut reader = Reader::<REPLY>::new(bytes, MAGIC, VERSION)?;
        let [errno, switch, port, _] = core::array::from_fn(|_| reader.u32());
        Some(Reply { errno, switch, port, name: reader.raw(), text: reader.raw() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_journey() {
        let ask = Ask {
            tx_slots: 1,
            rx_slots: 2,
            tx_rings: 3,
            rx_rings: 4,
            first: 5,
            second: 6,
            mode: 7,
            ..Ask::new(Verb::List, "vale0:a")
        };
        assert_eq!(Ask::from_bytes(&ask.to_bytes()), Some(ask));
        let reply = Reply { errno: 9, ..Reply::done("vale0:a", 1, 2) };
        assert_eq!(Reply::from_bytes(&reply.to_bytes()), Some(reply));
        assert_eq!(text(&Reply::refused(1, "no").text), Some("no"));
    }

    #[test]
    fn other_messages_are_refused() {
        let good = Ask::new(Verb::Open, "vale0:a").to_bytes();
        assert_eq!(Ask::from_bytes(&good[..ASK - 1]), None);
        let mut bad = good;
        bad[4] ^= 1;
        assert_eq!(Ask::from_bytes(&bad), None);
        // A name that never ends is none.
        assert_eq!(text(&[b'x'; NAME]), None);
        assert_eq!(text(&field::<8>("vale0:übel")), Some("vale0:"));
    }
}
