//! What can be asked of a broker, and what operators tell it.
//!
//! Requests are texts (JSON). The sender may be hostile, so exactly that is taken which [`Request::encode`]
//! makes: no second text means the same, and each path and name keeps to its rule.

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sandbox::open::passing::MAX_TEXT;

/// How long a broker may take over an answer: it may have to wait for a driver, or for a holder.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// Longest name of an interface in bytes: `IFNAMSIZ` less its final zero.
pub(crate) const MAX_NAME: usize = 15;
/// More than any interface has; a map of sockets takes memory for each.
const MAX_QUEUES: u32 = 4096;
/// More than a socket's buffer is ever asked to have.
const MAX_BUFFER: u32 = 64 << 20;

/// Whether `name` can be an interface's (`dev_valid_name` in the kernel, and no pattern of names).
pub(crate) fn is_interface(name: &str) -> bool {
    let odd = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control();
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains(odd) && name != "." && name != ".."
}

/// An absolute path.
fn is_path(path: &Path) -> bool {
    path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&0)
}

/// A name without a folder.
fn is_name(text: &str) -> bool {
    let good = text.len() < 256 && !text.starts_with('.') && text.chars().all(|c| c.is_ascii_graphic());
    good && !text.contains('/')
}

/// A TAP that is wanted in a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapIn {
    /// Where the namespace is.
    pub netns: PathBuf,
    /// The interface's name.
    pub name: String,
    /// Its station address, if not one that the kernel chooses.
    pub mac: Option<[u8; 6]>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it outlives its last user.
    pub stays: bool,
}

/// An address of an interface that comes or goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressIn {
    /// Where the namespace is.
    pub netns: PathBuf,
    /// The interface's name.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The length of its network.
    pub len: u8,
    /// Whether it is to be there.
    pub there: bool,
}

/// What a routing daemon sees of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shadow {
    /// Where the namespace is.
    pub netns: PathBuf,
    /// The VXLAN network identifier.
    pub vni: u32,
    /// The address of our endpoint.
    pub local: IpAddr,
}

/// Stations of ours in the table of a shadow, or addresses of IP that they have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    /// The shadow.
    pub shadow: Shadow,
    /// Whether they are to be there.
    pub there: bool,
    /// They are configured, and move nowhere.
    pub fixed: bool,
    /// An address of IP stands behind each, mapped if it is of IPv4.
    pub with_ip: bool,
    /// Their addresses in hexadecimal digits, one behind the other.
    pub text: String,
}

/// Digits of a station's address, and of one of IP.
const DIGITS: usize = 12;
const IP_DIGITS: usize = 32;

impl Shadow {
    fn is_sound(&self) -> bool {
        is_path(&self.netns) && self.vni < 1 << 24
    }
}

impl Entries {
    /// Most stations that one request holds.
    pub const MOST: usize = MAX_TEXT / 2 / DIGITS;
    /// Most addresses of IP that one request holds, each with its station.
    pub const MOST_WITH_IP: usize = MAX_TEXT / 2 / (DIGITS + IP_DIGITS);

    /// Entries of these stations.
    pub fn new(shadow: &Shadow, there: bool, fixed: bool, macs: &[[u8; 6]]) -> Entries {
        let text = macs.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        Entries { shadow: shadow.clone(), there, fixed, with_ip: false, text }
    }

    /// Entries of these addresses of IP, each with its station.
    pub fn with_ip(shadow: &Shadow, there: bool, all: &[(IpAddr, [u8; 6])]) -> Entries {
        let mapped = |ip: IpAddr| match ip {
            IpAddr::V4(it) => it.to_ipv6_mapped(),
            IpAddr::V6(it) => it,
        };
        let bytes = all.iter().flat_map(|(ip, mac)| mac.iter().copied().chain(mapped(*ip).octets()));
        let text = bytes.map(|byte| format!("{byte:02x}")).collect();
        Entries { shadow: shadow.clone(), there, fixed: false, with_ip: true, text }
    }

    fn digits(&self) -> usize {
        DIGITS + if self.with_ip { IP_DIGITS } else { 0 }
    }

    /// Their addresses, and those of IP.
    pub fn all(&self) -> impl Iterator<Item = ([u8; 6], Option<IpAddr>)> + '_ {
        self.text.as_bytes().chunks_exact(self.digits()).map(|digits| {
            let (mac, ip) = digits.split_at(DIGITS);
            let number = |digits| u128::from_str_radix(std::str::from_utf8(digits).unwrap_or("0"), 16);
            let [.., a, b, c, d, e, f] = number(mac).unwrap_or(0).to_be_bytes();
            ([a, b, c, d, e, f], number(ip).ok().map(|ip| Ipv6Addr::from(ip).to_canonical()))
        })
    }
}

/// A socket in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Socket {
    /// rtnetlink, to ask.
    Ask,
    /// sock_diag(7), to ask who listens.
    Look,
    /// rtnetlink, which tells of links, neighbours and addresses.
    Hear,
    /// A listener for TCP at 127.0.0.1 and this port; the loopback interface is brought up for it.
    Listen(u16),
}

/// What can be asked of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// A new holder for the VMM of port `of` (JSON); the connection to it.
    Hold { path: PathBuf, of: String },
    /// A connection to the holder that an earlier daemon left.
    Find { path: PathBuf },
    /// A queue of a TAP interface.
    Tap { name: String, create: bool, multi: bool },
    /// A packet socket for an interface, and bytes for its buffers.
    Packet { name: String, buffer: u32 },
    /// An AF_XDP socket for an interface, and bytes for its buffer.
    Xdp { name: String, buffer: u32 },
    /// A UDP socket at an address; with port 0 at a port that is free.
    Udp { at: SocketAddr },
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
    /// A process that opens and locks the file or block device of a disk, or only looks whether its server
    /// answers; the connection on which it tells.
    Disk { path: PathBuf, read_only: bool, look: bool },
    /// A new descriptor helper; the connection to it.
    DescriptorHelper,
    /// A socket in a network namespace.
    Inside { netns: PathBuf, socket: Socket },
    /// The queue of a TAP in a network namespace, which is made or taken and brought up.
    TapIn(TapIn),
    /// A TAP in a network namespace goes.
    TapOut { netns: PathBuf, name: String },
    /// The MTU of an interface in a network namespace.
    MtuIn { netns: PathBuf, name: String, mtu: u32 },
    /// A switch's shadow in a network namespace is made, or taken.
    Shadow(Shadow),
    /// A switch's shadow goes.
    ShadowOut(Shadow),
    /// The table of a shadow changes.
    Entries(Entries),
    /// An interface in a network namespace has an address, or has it not any more.
    AddressIn(AddressIn),
}

/// Why a text is no request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no request that is known")]
pub struct NoRequest;

impl Request {
    /// How many descriptors go along.
    pub fn fds(&self) -> usize {
        match self {
            Request::Enter { .. } => 2,
            Request::Attach { .. } => 1,
            _ => 0,
        }
    }

    /// Whether its paths, names and numbers keep to their rules.
    fn is_sound(&self) -> bool {
        match self {
            Request::Listen { path, .. }
            | Request::Call { path }
            | Request::Hold { path, .. }
            | Request::Find { path }
            | Request::JournalAt { path }
            | Request::Disk { path, .. }
            | Request::Inside { netns: path, .. } => is_path(path),
            Request::TapIn(TapIn { netns, name, .. })
            | Request::AddressIn(AddressIn { netns, name, .. })
            | Request::TapOut { netns, name }
            | Request::MtuIn { netns, name, .. } => is_path(netns) && is_interface(name),
            Request::Tap { name, .. }
            | Request::Attach { name, .. }
            | Request::Mtu { name, .. }
            | Request::Up { name } => is_interface(name),
            Request::Packet { name, buffer } | Request::Xdp { name, buffer } => {
                is_interface(name) && *buffer <= MAX_BUFFER
            }
            Request::Journal { name } | Request::Forget { name } | Request::Next { after: name } => {
                is_name(name)
            }
            Request::Sockets { queues } => (1..=MAX_QUEUES).contains(queues),
            Request::Shadow(shadow) | Request::ShadowOut(shadow) => shadow.is_sound(),
            Request::Entries(entries) => {
                let Entries { shadow, text, .. } = entries;
                let good = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
                shadow.is_sound() && text.len() % entries.digits() == 0 && text.bytes().all(good)
            }
            Request::Udp { at } => !at.ip().is_unspecified(),
            Request::Remove { .. }
            | Request::Enter { .. }
            | Request::Config
            | Request::Accounts { .. }
            | Request::DescriptorHelper => true,
        }
    }

    /// Its text.
    ///
    /// # Errors
    /// It is too long, or a path, a name or a number breaks its rule.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let bad = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if !self.is_sound() {
            return Err(bad("the broker knows no such path, name or number: no path or name has a zero byte, a name has no '/' or space"));
        }
        let text = serde_json::to_vec(self)?;
        if text.len() > MAX_TEXT {
            return Err(bad("the path is too long"));
        }
        Ok(text)
    }

    /// What `text` asks for.
    ///
    /// # Errors
    /// Nothing that is known.
    pub fn decode(text: &[u8]) -> Result<Request, NoRequest> {
        let request: Request = serde_json::from_slice(text).map_err(|_| NoRequest)?;
        request.encode().is_ok_and(|again| again == text).then_some(request).ok_or(NoRequest)
    }
}

/// What an operator allows a broker whose daemon has given its privileges up: a user who may open the
/// broker's socket names it to the broker itself. That socket is beside those of ring ports, with the control
/// socket's permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A socket of ours at this path, and its holder's beside it.
    Socket(PathBuf),
    /// Sockets of ours in this folder, and in none below it.
    Folder(PathBuf),
    /// Calls to the listener at this path.
    Call(PathBuf),
    /// A journal at this path.
    Journal(PathBuf),
    /// A disk's file or block device at this path.
    Disk(PathBuf),
    /// The interface of this name.
    Interface(String),
    /// Sockets of UDP at this address.
    Address(String),
    /// The network namespace at this path: TAPs, addresses and sockets in it.
    Namespace(PathBuf),
}

/// A letter, and what stands behind it as what it names.
type NamedLetter = (char, fn(&str) -> Named);

/// The letters that stand for them.
const LETTERS: [NamedLetter; 8] = [
    ('s', |path| Named::Socket(path.into())),
    ('f', |path| Named::Folder(path.into())),
    ('c', |path| Named::Call(path.into())),
    ('j', |path| Named::Journal(path.into())),
    ('d', |path| Named::Disk(path.into())),
    ('i', |name| Named::Interface(name.into())),
    ('a', |ip| Named::Address(ip.into())),
    ('n', |path| Named::Namespace(path.into())),
];

impl Named {
    /// Where the broker of the daemon with this control socket hears of it.
    pub fn place(control_socket: &Path) -> PathBuf {
        let folder = control_socket.parent().unwrap_or(Path::new("."));
        folder.join("ring").join(sidecore_abi::vale::OPERATORS)
    }

    /// The name or path.
    fn text(&self) -> &OsStr {
        match self {
            Named::Interface(name) | Named::Address(name) => name.as_ref(),
            Named::Socket(path) | Named::Folder(path) | Named::Call(path) => path.as_os_str(),
            Named::Journal(path) | Named::Disk(path) | Named::Namespace(path) => path.as_os_str(),
        }
    }

    /// Its text: a letter, and the name or path. `None`: no such path or name can be.
    pub fn encode(&self) -> Option<String> {
        let text = self.text().to_str()?;
        let good = match self {
            Named::Interface(name) => is_name(name),
            Named::Address(ip) => ip.parse::<IpAddr>().is_ok_and(|parsed| parsed.to_string() == *ip),
            _ => is_path(Path::new(text)),
        };
        let (letter, _) = LETTERS.iter().find(|(_, named)| named(text) == *self)?;
        (good && text.len() <= MAX_TEXT).then(|| format!("{letter}{text}"))
    }

    /// What `text` says.
    ///
    /// # Errors
    /// Nothing that is known.
    pub fn decode(text: &[u8]) -> Result<Named, NoRequest> {
        let text = std::str::from_utf8(text).map_err(|_| NoRequest)?;
        let known = LETTERS.iter().find_map(|(letter, named)| Some(named(text.strip_prefix(*letter)?)));
        known.filter(|named| named.encode().is_some()).ok_or(NoRequest)
    }

    /// Tells the broker of the daemon with this control socket.
    ///
    /// # Errors
    /// No broker is there, or this user is no operator.
    pub fn tell(&self, control_socket: &Path) -> io::Result<()> {
        let text = self.encode().ok_or(io::ErrorKind::InvalidInput)?;
        let socket = std::os::unix::net::UnixDatagram::unbound()?;
        // A broker that is busy is waited for, not for ever.
        socket.set_write_timeout(Some(ANSWER))?;
        socket.send_to(text.as_bytes(), Named::place(control_socket)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Request> {
        let path = || PathBuf::from("/run/x/a.sock");
        let name = || "sc0".to_owned();
        let shadow = || Shadow { netns: path(), vni: 100, local: [10, 0, 0, 1].into() };
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
            Request::Hold { path: path(), of: String::new() },
            Request::Find { path: path() },
            Request::Tap { name: name(), create: true, multi: false },
            Request::Packet { name: name(), buffer: 8 << 20 },
            Request::Xdp { name: name(), buffer: 0 },
            Request::Shadow(shadow()),
            Request::ShadowOut(shadow()),
            Request::Entries(Entries::new(&shadow(), true, false, &[[2, 0, 0, 0, 0, 1], [0xfe; 6]])),
            Request::Entries(Entries::with_ip(&shadow(), false, &[([10, 0, 0, 1].into(), [2; 6])])),
            Request::Inside { netns: path(), socket: Socket::Look },
            Request::Udp { at: ([10, 0, 0, 1], 4789).into() },
            Request::Udp { at: ([7u16; 8], 0).into() },
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
            Request::DescriptorHelper,
            Request::Disk { path: path(), read_only: true, look: false },
            Request::Disk { path: path(), read_only: false, look: true },
            Request::Inside { netns: path(), socket: Socket::Listen(2620) },
            Request::TapIn(TapIn {
                netns: path(),
                name: name(),
                mac: Some([2, 0, 0, 0, 0, 0]),
                mtu: 1500,
                stays: true,
            }),
            Request::TapIn(TapIn { netns: path(), name: "x".repeat(15), mac: None, mtu: 68, stays: false }),
            Request::TapOut { netns: path(), name: name() },
            Request::MtuIn { netns: path(), name: name(), mtu: 9000 },
            Request::AddressIn(AddressIn {
                netns: path(),
                name: name(),
                address: [10, 0, 0, 1].into(),
                len: 24,
                there: true,
            }),
            Request::AddressIn(AddressIn {
                netns: path(),
                name: name(),
                address: [7u16; 8].into(),
                len: 128,
                there: false,
            }),
        ]
    }

    #[test]
    fn texts_are_what_they_were_made_of() {
        for request in all() {
            let text = request.encode().unwrap();
            assert_eq!(Request::decode(&text), Ok(request));
        }
        for text in ["s/a", "f/a", "c/a", "j/a", "d/a", "isc0", "n/a", "a10.0.0.1", "a2001:db8::1"] {
            assert_eq!(Named::decode(text.as_bytes()).unwrap().encode().unwrap(), text);
        }
        for bad in ["", "s", "sa", "x/a", "i/a", "éa", "a10.0.0.01", "a/a"] {
            assert_eq!(Named::decode(bad.as_bytes()), Err(NoRequest), "{bad}");
        }
    }

    /// Every byte counts: a text that differs in one is another request, or none.
    #[test]
    fn nothing_hides_in_a_text() {
        for request in all() {
            let text = request.encode().unwrap();
            assert_eq!(Request::decode(&text[1..]), Err(NoRequest));
            assert_eq!(Request::decode(&[&text, &b" "[..]].concat()), Err(NoRequest));
            for at in 0..text.len() {
                for bit in 0..8 {
                    let mut other = text.clone();
                    other[at] ^= 1 << bit;
                    if let Ok(decoded) = Request::decode(&other) {
                        assert_eq!(decoded.encode().unwrap(), other);
                        assert!(decoded != request, "{request:?} at {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn paths_names_and_numbers_keep_to_their_rules() {
        for bad in ["", "x", "../x", "/a\0b"] {
            let text = serde_json::to_vec(&Request::Call { path: bad.into() }).unwrap();
            assert_eq!(Request::decode(&text), Err(NoRequest), "{bad:?}");
            assert!(Request::Call { path: bad.into() }.encode().is_err(), "{bad:?}");
            assert_eq!(Named::Disk(bad.into()).encode(), None, "{bad:?}");
        }
        for bad in ["a/b", "..", "a b", "a\0", &"x".repeat(256)] {
            for request in [Request::Up { name: bad.into() }, Request::Forget { name: bad.into() }] {
                assert_eq!(
                    Request::decode(&serde_json::to_vec(&request).unwrap()),
                    Err(NoRequest),
                    "{bad:?}"
                );
                assert!(request.encode().is_err(), "{bad:?}");
            }
            assert_eq!(Named::Interface(bad.into()).encode(), None, "{bad:?}");
        }
        for bad in [".a", "ä"] {
            assert!(Request::Forget { name: bad.into() }.encode().is_err(), "{bad:?}");
        }
        assert!(Request::Sockets { queues: MAX_QUEUES + 1 }.encode().is_err());
        assert!(Request::Packet { name: "a".into(), buffer: MAX_BUFFER + 1 }.encode().is_err());
        let long = Request::Call { path: format!("/{}", "x".repeat(MAX_TEXT)).into() };
        assert_eq!(long.encode().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
