//! What can be asked, and its records.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::record::{name, parts, path, record, NoRequest, PROTOCOL, RECORD};

/// What can be asked of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the arguments of what each stands for")]
pub enum Request {
    /// A listening socket, made where nothing is; it is remembered for `Remove`.
    Listen {
        path: PathBuf,
        seqpacket: bool,
        mode: Option<u32>,
        owner: (Option<u32>, Option<u32>),
        backlog: u32,
    },
    /// The file of a socket that was made goes.
    Remove { number: u64 },
    /// A connection to a VMM that listens.
    Call { path: PathBuf },
    /// A new holder; the connection to it.
    Hold { path: PathBuf },
    /// A connection to the holder that an earlier daemon left.
    Find { path: PathBuf },
    /// A queue of a TAP interface.
    Tap { name: String, create: bool, multi: bool },
    /// A packet socket for an interface, and bytes for its buffers.
    Packet { name: String, buffer: u32 },
    /// An AF_XDP socket for an interface, and bytes for its buffer.
    Xdp { name: String, buffer: u32 },
    /// A map of AF_XDP sockets.
    Sockets { queues: u32 },
    /// Puts a socket into a map; both go along.
    Enter { queue: u32 },
    /// Loads the one program for the map that goes along, and attaches it to an interface.
    Attach { name: String, native: bool },
    /// The MTU of an interface.
    Mtu { name: String, mtu: u32 },
    /// An interface is brought up.
    Up { name: String },
    /// The journal of a port.
    Journal { name: String },
    /// A journal where the operator wants it.
    JournalAt { path: PathBuf },
    /// The journal of a port goes.
    Forget { name: String },
    /// The name of the journal that comes behind another one's.
    Next { after: String },
    /// The configuration file, to read.
    Config,
    /// The file of users, or of groups, to read.
    Accounts { groups: bool },
    /// A process that opens and locks the file or block device of a disk, or only looks whether its server answers; the connection on
    /// which it tells.
    Disk { path: PathBuf, read_only: bool, look: bool },
    /// A new door; the connection to it.
    Door,
    /// A socket in a network namespace: which, by `host::netns::socket_of`.
    Inside { netns: PathBuf, what: u32 },
    /// The queue of a TAP in a network namespace, which is made or taken and brought up.
    TapIn { netns: PathBuf, name: String, mac: Option<[u8; 6]>, mtu: u32, stays: bool },
    /// A TAP in a network namespace goes.
    TapOut { netns: PathBuf, name: String },
    /// The MTU of an interface in a network namespace.
    MtuIn { netns: PathBuf, name: String, mtu: u32 },
    /// An interface in a network namespace has an address, or has it not any more.
    AddressIn { netns: PathBuf, name: String, address: IpAddr, len: u8, there: bool },
}

type Fields = (u64, [u64; 5], Vec<u8>);

fn optional(value: Option<u32>) -> u64 {
    value.map_or(0, |value| 1 << 32 | u64::from(value))
}

/// Longest name of an interface in bytes.
const INTERFACE: usize = 15;

/// The name of an interface as two words, if it has room there.
fn packed(name: &str) -> [u64; 2] {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(name.bytes()).take(INTERFACE).for_each(|(to, from)| *to = from);
    let number = u128::from_ne_bytes(bytes);
    halves(number)
}

#[expect(clippy::cast_possible_truncation, reason = "halves")]
fn halves(number: u128) -> [u64; 2] {
    [number as u64, (number >> 64) as u64]
}

/// A station address as a word, which says that there is one.
fn station(mac: Option<[u8; 6]>) -> u64 {
    mac.map_or(0, |[a, b, c, d, e, f]| u64::from_ne_bytes([a, b, c, d, e, f, 1, 0]))
}

/// An address of either family as one of IPv6.
fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(it) => it.to_ipv6_mapped().to_bits(),
        IpAddr::V6(it) => it.to_bits(),
    }
}

/// Arguments of a record, taken in order; what is left over makes it none.
struct Arguments<'r>(std::slice::Iter<'r, u64>);

impl Arguments<'_> {
    fn word(&mut self) -> Result<u64, NoRequest> {
        self.0.next().copied().ok_or(NoRequest)
    }

    fn small(&mut self) -> Result<u32, NoRequest> {
        u32::try_from(self.word()?).map_err(|_| NoRequest)
    }

    fn optional(&mut self) -> Result<Option<u32>, NoRequest> {
        match self.word()? {
            0 => Ok(None),
            word if word >> 32 == 1 => Ok(u32::try_from(word & 0xffff_ffff).ok()),
            _ => Err(NoRequest),
        }
    }

    fn wide(&mut self) -> Result<u128, NoRequest> {
        Ok(u128::from(self.word()?) | u128::from(self.word()?) << 64)
    }

    /// The name of an interface.
    fn interface(&mut self) -> Result<String, NoRequest> {
        let bytes = self.wide()?.to_ne_bytes();
        let len = bytes.iter().position(|byte| *byte == 0).ok_or(NoRequest)?;
        name(&bytes[..len])
    }

    fn station(&mut self) -> Result<Option<[u8; 6]>, NoRequest> {
        match self.word()?.to_ne_bytes() {
            [0, 0, 0, 0, 0, 0, 0, 0] => Ok(None),
            [mac @ .., 1, 0] => Ok(Some(mac)),
            _ => Err(NoRequest),
        }
    }

    fn flag(&mut self) -> Result<bool, NoRequest> {
        match self.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NoRequest),
        }
    }
}

impl Request {
    fn fields(&self) -> Fields {
        let path = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let flag = u64::from;
        match self {
            Request::Listen { path: at, seqpacket, mode, owner, backlog } => {
                let words = [
                    flag(*seqpacket),
                    optional(*mode),
                    optional(owner.0),
                    optional(owner.1),
                    u64::from(*backlog),
                ];
                (1, words, path(at))
            }
            Request::Remove { number } => (2, [*number, 0, 0, 0, 0], Vec::new()),
            Request::Call { path: at } => (3, [0; 5], path(at)),
            Request::Hold { path: at } => (4, [0; 5], path(at)),
            Request::Find { path: at } => (5, [0; 5], path(at)),
            Request::Tap { name, create, multi } => {
                (6, [flag(*create), flag(*multi), 0, 0, 0], name.clone().into_bytes())
            }
            Request::Packet { name, buffer } => {
                (7, [u64::from(*buffer), 0, 0, 0, 0], name.clone().into_bytes())
            }
            Request::Xdp { name, buffer } => (8, [u64::from(*buffer), 0, 0, 0, 0], name.clone().into_bytes()),
            Request::Sockets { queues } => (9, [u64::from(*queues), 0, 0, 0, 0], Vec::new()),
            Request::Enter { queue } => (10, [u64::from(*queue), 0, 0, 0, 0], Vec::new()),
            Request::Attach { name, native } => (11, [flag(*native), 0, 0, 0, 0], name.clone().into_bytes()),
            Request::Mtu { name, mtu } => (12, [u64::from(*mtu), 0, 0, 0, 0], name.clone().into_bytes()),
            Request::Up { name } => (13, [0; 5], name.clone().into_bytes()),
            Request::Journal { name } => (14, [0; 5], name.clone().into_bytes()),
            Request::JournalAt { path: at } => (15, [0; 5], path(at)),
            Request::Forget { name } => (16, [0; 5], name.clone().into_bytes()),
            Request::Next { after } => (17, [0; 5], after.clone().into_bytes()),
            Request::Config => (18, [0; 5], Vec::new()),
            Request::Accounts { groups } => (20, [flag(*groups), 0, 0, 0, 0], Vec::new()),
            Request::Door => (21, [0; 5], Vec::new()),
            Request::Disk { path: at, read_only, look } => {
                (22, [flag(*read_only), flag(*look), 0, 0, 0], path(at))
            }
            Request::Inside { netns, what } => (23, [u64::from(*what), 0, 0, 0, 0], path(netns)),
            Request::TapIn { netns, name, mac, mtu, stays } => {
                let [a, b] = packed(name);
                (24, [a, b, station(*mac), u64::from(*mtu), flag(*stays)], path(netns))
            }
            Request::TapOut { netns, name } => {
                let [a, b] = packed(name);
                (25, [a, b, 0, 0, 0], path(netns))
            }
            Request::MtuIn { netns, name, mtu } => {
                let [a, b] = packed(name);
                (26, [a, b, u64::from(*mtu), 0, 0], path(netns))
            }
            Request::AddressIn { netns, name, address, len, there } => {
                let ([a, b], [c, d]) = (packed(name), halves(mapped(*address)));
                (27, [a, b, c, d, u64::from(*len) | flag(*there) << 8], path(netns))
            }
        }
    }

    /// How many descriptors go along.
    pub fn fds(&self) -> usize {
        match self {
            Request::Enter { .. } => 2,
            Request::Attach { .. } => 1,
            _ => 0,
        }
    }

    /// Whether its text keeps to its rule.
    fn is_sound(&self) -> bool {
        match self {
            Request::Listen { path: at, .. }
            | Request::Call { path: at }
            | Request::Hold { path: at }
            | Request::Find { path: at }
            | Request::JournalAt { path: at }
            | Request::Disk { path: at, .. }
            | Request::Inside { netns: at, .. } => path(at.as_os_str().as_bytes()).is_ok(),
            Request::TapIn { netns, name: text, .. }
            | Request::TapOut { netns, name: text }
            | Request::MtuIn { netns, name: text, .. }
            | Request::AddressIn { netns, name: text, .. } => {
                let short = (1..=INTERFACE).contains(&text.len());
                short && path(netns.as_os_str().as_bytes()).is_ok() && name(text.as_bytes()).is_ok()
            }
            Request::Tap { name: text, .. }
            | Request::Packet { name: text, .. }
            | Request::Xdp { name: text, .. }
            | Request::Attach { name: text, .. }
            | Request::Mtu { name: text, .. }
            | Request::Up { name: text }
            | Request::Journal { name: text }
            | Request::Forget { name: text }
            | Request::Next { after: text } => name(text.as_bytes()).is_ok(),
            _ => true,
        }
    }

    /// The record, with the number by which the answer is known.
    ///
    /// # Errors
    /// A path is longer than [`MAX_TEXT`], or a text is no path or name.
    pub fn encode(&self, number: u64) -> io::Result<[u8; RECORD]> {
        if !self.is_sound() {
            let why = "the broker knows no such path or name: none has a zero byte, a name has no '/' or space and begins with no '.'";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let (op, words, text) = self.fields();
        record(PROTOCOL | op, number, words, &text)
    }

    /// What the record `bytes` asks for, and its number.
    ///
    /// # Errors
    /// Nothing that is known.
    pub fn decode(bytes: &[u8]) -> Result<(Request, u64), NoRequest> {
        let (what, number, words, text) = parts(bytes).ok_or(NoRequest)?;
        let mut arguments = Arguments(words.iter());
        let a = &mut arguments;
        if what & !0xffff_ffff != PROTOCOL {
            return Err(NoRequest);
        }
        let request = match what & 0xffff_ffff {
            1 => Request::Listen {
                seqpacket: a.flag()?,
                mode: a.optional()?,
                owner: (a.optional()?, a.optional()?),
                backlog: a.small()?,
                path: path(text)?,
            },
            2 => Request::Remove { number: a.word()? },
            3 => Request::Call { path: path(text)? },
            4 => Request::Hold { path: path(text)? },
            5 => Request::Find { path: path(text)? },
            6 => Request::Tap { create: a.flag()?, multi: a.flag()?, name: name(text)? },
            7 => Request::Packet { buffer: a.small()?, name: name(text)? },
            8 => Request::Xdp { buffer: a.small()?, name: name(text)? },
            9 => Request::Sockets { queues: a.small()? },
            10 => Request::Enter { queue: a.small()? },
            11 => Request::Attach { native: a.flag()?, name: name(text)? },
            12 => Request::Mtu { mtu: a.small()?, name: name(text)? },
            13 => Request::Up { name: name(text)? },
            14 => Request::Journal { name: name(text)? },
            15 => Request::JournalAt { path: path(text)? },
            16 => Request::Forget { name: name(text)? },
            17 => Request::Next { after: name(text)? },
            18 => Request::Config,
            20 => Request::Accounts { groups: a.flag()? },
            21 => Request::Door,
            22 => Request::Disk { read_only: a.flag()?, look: a.flag()?, path: path(text)? },
            23 => Request::Inside { what: a.small()?, netns: path(text)? },
            24 => Request::TapIn {
                name: a.interface()?,
                mac: a.station()?,
                mtu: a.small()?,
                stays: a.flag()?,
                netns: path(text)?,
            },
            25 => Request::TapOut { name: a.interface()?, netns: path(text)? },
            26 => Request::MtuIn { name: a.interface()?, mtu: a.small()?, netns: path(text)? },
            27 => {
                let (name, number, how) = (a.interface()?, Ipv6Addr::from_bits(a.wide()?), a.word()?);
                let address = number.to_ipv4_mapped().map_or(IpAddr::V6(number), IpAddr::V4);
                let len = u8::try_from(how & 0xff).map_err(|_| NoRequest)?;
                Request::AddressIn { name, address, len, there: how >> 8 == 1, netns: path(text)? }
            }
            _ => return Err(NoRequest),
        };
        // No second record means the same: nothing hides in words and bytes that are not read.
        match request.encode(number) {
            Ok(again) if again == bytes => Ok((request, number)),
            _ => Err(NoRequest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::broker::MAX_TEXT;

    fn all() -> Vec<Request> {
        let path = || PathBuf::from("/run/x/a.sock");
        let name = || "sc0".to_owned();
        vec![
            Request::Listen {
                path: path(),
                seqpacket: true,
                mode: Some(0),
                owner: (None, Some(u32::MAX)),
                backlog: 4,
            },
            Request::Remove { number: u64::MAX },
            Request::Call { path: path() },
            Request::Hold { path: path() },
            Request::Find { path: path() },
            Request::Tap { name: name(), create: true, multi: false },
            Request::Packet { name: name(), buffer: 8 << 20 },
            Request::Xdp { name: name(), buffer: 0 },
            Request::Sockets { queues: 16 },
            Request::Enter { queue: 3 },
            Request::Attach { name: name(), native: true },
            Request::Mtu { name: name(), mtu: 9000 },
            Request::Up { name: name() },
            Request::Journal { name: name() },
            Request::JournalAt { path: path() },
            Request::Forget { name: name() },
            Request::Next { after: String::new() },
            Request::Config,
            Request::Accounts { groups: true },
            Request::Door,
            Request::Disk { path: path(), read_only: true, look: false },
            Request::Disk { path: path(), read_only: false, look: true },
            Request::Inside { netns: path(), what: 1 << 16 | 2620 },
            Request::TapIn {
                netns: path(),
                name: name(),
                mac: Some([2, 0, 0, 0, 0, 0]),
                mtu: 1500,
                stays: true,
            },
            Request::TapIn { netns: path(), name: "x".repeat(15), mac: None, mtu: 68, stays: false },
            Request::TapOut { netns: path(), name: name() },
            Request::MtuIn { netns: path(), name: name(), mtu: 9000 },
            Request::AddressIn {
                netns: path(),
                name: name(),
                address: [10, 0, 0, 1].into(),
                len: 24,
                there: true,
            },
            Request::AddressIn {
                netns: path(),
                name: name(),
                address: [7u16; 8].into(),
                len: 128,
                there: false,
            },
        ]
    }

    #[test]
    fn records_are_what_they_were_made_of() {
        for (number, request) in (7..).zip(all()) {
            let bytes = request.encode(number).unwrap();
            assert_eq!(Request::decode(&bytes), Ok((request, number)));
        }
    }

    /// Every byte counts: a record that differs in one is another request, or none.
    #[test]
    fn nothing_hides_in_a_record() {
        for request in all() {
            let bytes = request.encode(1).unwrap();
            assert_eq!(Request::decode(&bytes[1..]), Err(NoRequest));
            for at in (0..RECORD).filter(|at| *at < 200 || at % 97 == 0) {
                for bit in 0..8 {
                    let mut other = bytes;
                    other[at] ^= 1 << bit;
                    if let Ok((decoded, number)) = Request::decode(&other) {
                        assert_eq!(decoded.encode(number).unwrap(), other);
                        assert!(decoded != request || number != 1, "{request:?} at {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn paths_and_names_keep_to_their_rules() {
        for bad in ["", "x", "../x", "/a\0b"] {
            assert!(path(bad.as_bytes()).is_err(), "{bad:?}");
            assert!(Request::Call { path: bad.into() }.encode(1).is_err(), "{bad:?}");
        }
        for bad in ["a/b", ".a", "..", "a b", "a\0", "ä", &"x".repeat(256)] {
            assert!(name(bad.as_bytes()).is_err(), "{bad:?}");
            assert!(Request::Up { name: bad.into() }.encode(1).is_err(), "{bad:?}");
        }
        let long = Request::Call { path: format!("/{}", "x".repeat(MAX_TEXT)).into() };
        assert_eq!(long.encode(1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
