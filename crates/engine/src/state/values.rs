//! The values that options take. Each type is read from one word of text, the same on the command
//! line, in a file and in JSON, and says itself what it allows; nothing else checks it again.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::{Error as _, Visitor};
use serde::{Deserializer, Serialize};

use crate::core::Class;
use crate::host::xdp::XdpMode;
use crate::mem::Files;
use crate::policy::acl::Action;
use crate::policy::{MacGuard, TagProtocol, VlanSet, MAX_VLAN};
use crate::router::{Net, Rpf};
use crate::sandbox::open::accounts;
use crate::util::form::{forms, read_as_word, worded, Form, Value};

/// How types are written: the form for people, how they are read from a word (or, with `quoted`, from text
/// alone), what is allowed instead of others, and how they are shown, if that is their JSON, too.
macro_rules! texts {
    ($($type:ident = $form:expr, {
        read: $read:expr, allowed: $allowed:expr, $(quoted: $quoted:literal,)? $(write: $write:expr,)?
    })+) => {$(
        impl $crate::util::form::Value for $type {
            const FORM: $crate::util::form::Form = $form;
        }

        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let read: fn(&str) -> Option<$type> = $read;
                read(text).ok_or_else(|| format!("{text:?} is not allowed; allowed: {}", $allowed))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
                $crate::state::values::texts!(@read source $(, $quoted)?)
            }
        }

        $(impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let write: fn(&Self, &mut std::fmt::Formatter<'_>) -> std::fmt::Result = $write;
                write(self, f)
            }
        }

        $crate::util::form::write_as_text!($type);)?
    )+};
    (@read $source:ident) => { $crate::util::form::word($source) };
    (@read $source:ident, $quoted:literal) => { $crate::state::values::text_only($source, $quoted) };
}

pub(super) use texts;

/// The words for the values of enumerations.
macro_rules! spell {
    ($($type:ident { $($value:ident = $word:literal,)+ })+) => {$(
        worded! { $type = Form::OneOf(&[$($word),+]); }

        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($type::$value),)+
                    _ => Err(format!("{text:?} is not allowed; allowed: {}", [$($word),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$value => $word,)+ })
            }
        }
    )+};
}

/// Enumerations, each value of which is one word.
macro_rules! words {
    ($($(#[$doc:meta])* $type:ident { $($(#[$what:meta])* $value:ident = $word:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$what])* $value,)+ }

        spell! { $type { $($value = $word,)+ } }
    )+};
}

words! {
    /// The side that makes the socket.
    Role {
        /// We listen, the VMM connects.
        Server = "server",
        /// The VMM listens, we connect, and connect again.
        Client = "client",
    }
    /// How lines of the log are written.
    LogFormat {
        /// For people.
        Text = "text",
        /// An object of JSON each.
        Json = "json",
    }
    /// What the daemon takes from itself.
    Sandbox {
        /// Nothing.
        Off = "off",
        /// What would be refused is logged by the kernel, and carried out.
        Warn = "warn",
        /// All that it does not need.
        On = "on",
    }
    /// The carrier that the operator wants.
    Link {
        /// It follows the peer.
        Up = "up",
        /// It is down whatever the peer does.
        Down = "down",
    }
    /// Something that is on or off.
    Toggle {
        /// On.
        On = "on",
        /// Off.
        Off = "off",
    }
    /// Frames of which directions.
    Directions {
        /// Those that come in by a port.
        In = "in",
        /// Those that go out by it.
        Out = "out",
        /// Both.
        Both = "both",
    }
    /// What becomes of control frames.
    Control {
        /// They pass.
        Pass = "pass",
        /// They end here.
        Drop = "drop",
    }
    /// What a frame says of an address that another port has.
    MacMove {
        /// That it may have moved.
        Claim = "claim",
        /// That it has moved.
        Learn = "learn",
    }
    /// When what a guest wrote to its disk lasts.
    Cache {
        /// From its next flush on.
        Writeback = "writeback",
        /// From the answer on.
        Writethrough = "writethrough",
    }
    /// Bytes of a disk's logical block.
    BlockSize {
        /// A sector.
        Sector = "512",
        /// A page.
        Page = "4096",
    }
}

spell! {
    Action {
        Permit = "permit",
        Deny = "deny",
    }
    Class {
        Latency = "latency",
        Throughput = "throughput",
    }
    Files {
        Memory = "memory",
        Any = "any",
    }
    MacGuard {
        Off = "off",
        Claim = "claim",
        Strict = "strict",
    }
    TagProtocol {
        Customer = "802.1q",
        Service = "802.1ad",
    }
    XdpMode {
        Copy = "copy",
        ZeroCopy = "zerocopy",
        Auto = "auto",
    }
    Rpf {
        Off = "off",
        Loose = "loose",
        Strict = "strict",
    }
}

/// What there is, for people.
pub(super) fn names(all: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let all: Vec<String> = all.into_iter().map(|name| name.to_string()).collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

/// The number in `text`, which may have one of `units` behind it, and that unit's size.
pub(super) fn scaled(text: &str, units: &[(char, u64)]) -> Option<u64> {
    let unit = units.iter().find_map(|(letter, times)| Some((text.strip_suffix(*letter)?, *times)));
    let (number, times) = unit.unwrap_or((text, 1));
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(times)
}

/// `number` as [`scaled`] reads it, with the largest unit that fits.
pub(super) fn in_units(number: u64, units: &[(char, u64)]) -> String {
    match units.iter().rev().find(|(_, times)| number % times == 0) {
        Some((letter, times)) => format!("{}{letter}", number / times),
        None => number.to_string(),
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Number<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Number<MIN, MAX> {
    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> FromStr for Number<MIN, MAX> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u32>() {
            Ok(n) if (MIN..=MAX).contains(&n) => Ok(Self(n)),
            _ => Err(format!("{text:?} is not allowed; allowed: a number from {MIN} to {MAX}")),
        }
    }
}

impl<const MIN: u32, const MAX: u32> fmt::Display for Number<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Permission bits of a socket, written as octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

/// Reads what may be written as octal digits from text alone: TOML's 0o660 would arrive as the number 432,
/// and 660 as itself.
pub(super) fn text_only<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(
    source: D,
    expected: &'static str,
) -> Result<T, D::Error> {
    struct Text(&'static str);
    impl Visitor<'_> for Text {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }
    source.deserialize_str(Text(expected))?.parse().map_err(D::Error::custom)
}

/// `USER`, `USER:GROUP` or `:GROUP`; names or numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner(String);

impl Owner {
    /// The numbers of user and group.
    ///
    /// # Errors
    /// A name that the system does not know.
    pub fn ids(&self) -> Result<(Option<u32>, Option<u32>), String> {
        let (user, group) = self.0.split_once(':').unwrap_or((&self.0, ""));
        Ok((lookup(user, false)?, lookup(group, true)?))
    }
}

/// The number of a user, or of a group.
fn lookup(name: &str, groups: bool) -> Result<Option<u32>, String> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let (file, what) = (accounts::file(groups), if groups { "group" } else { "user" });
    let found = accounts::find(groups, |entry| entry.name == name);
    match found.map_err(|e| format!("cannot read {file}: {e}"))? {
        Some(entry) => Ok(Some(entry.id)),
        None => Err(format!(
            "{what} {name:?} is not in {file}; a name from a directory service must be given by number"
        )),
    }
}

/// What `mode` is: of a socket its permission bits, of an `xdp` port whether the kernel copies frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PortMode {
    /// Whether the kernel copies frames.
    Xdp(XdpMode),
    /// Permission bits.
    Bits(Mode),
}

impl PortMode {
    /// The permission bits, if it is those.
    pub fn bits(self) -> Option<u32> {
        match self {
            PortMode::Bits(mode) => Some(mode.0),
            _ => None,
        }
    }
}

/// An address of one station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// As a number, first byte lowest: what a frame's head gives.
    pub fn number(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

/// An address of a station, or those of all virtual routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This one.
    Mac(Mac),
    /// Those of RFC 9568: 00:00:5e:00:01:00 to 00:00:5e:00:02:ff.
    Vrrp,
}

impl FromStr for Source {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "vrrp" {
            return Ok(Source::Vrrp);
        }
        text.parse().map(Source::Mac).map_err(|why: String| format!("{why}, or vrrp"))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Mac(mac) => mac.fmt(f),
            Source::Vrrp => f.write_str("vrrp"),
        }
    }
}

/// A VLAN's number.
pub type VlanNumber = Number<1, { MAX_VLAN as u32 }>;

/// VLANs, from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanRange(u16, u16);

/// VLANs.
pub type VlanRanges = List<VlanRange>;

impl VlanRanges {
    /// All of them.
    pub(super) fn set(&self) -> VlanSet {
        VlanSet::new(self.0.iter().map(|range| (range.0, range.1)))
    }
}

/// Several values, joined by `+` on the command line, a list in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct List<T>(pub Vec<T>);

/// Words.
pub type NameList = List<String>;
/// The number of an open descriptor of the daemon.
pub type Fd = Number<3, 1_048_576>;
/// Open descriptors of the daemon.
pub type Fds = List<Fd>;
/// Addresses of stations.
pub type Macs = List<Mac>;
/// Source addresses.
pub type Sources = List<Source>;

/// Addresses of a router, each with its network.
pub type Nets = List<Net>;
/// Gateways of a route.
pub type Gateways = List<IpAddr>;

/// Most values in a list.
const MOST: usize = 1024;

impl<T: FromStr<Err: fmt::Display>> FromStr for List<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(['+', ',']).collect();
        if words.len() > MOST || words.contains(&"") {
            return Err(format!("{text:?} is not allowed; allowed: 1 to {MOST} values joined by '+'"));
        }
        let list = words.into_iter().map(|word| word.parse().map_err(|e: T::Err| e.to_string()));
        Ok(List(list.collect::<Result<_, _>>()?))
    }
}

texts! {
    Mode = Form::Text("OCTAL", "0660"), {
        read: |text| {
            let bits = u32::from_str_radix(text, 8).ok();
            bits.filter(|bits| *bits <= 0o777 && text.len() >= 3).map(Mode)
        },
        allowed: "octal digits from 000 to 0777, such as 0660",
        quoted: "octal digits in quotes, such as \"0660\"",
        write: |mode, f| write!(f, "{:04o}", mode.0),
    }
    Owner = Form::Text("USER[:GROUP]", "root"), {
        read: |text| {
            let parts: Vec<&str> = text.split(':').collect();
            let named = parts.iter().any(|part| !part.is_empty());
            let sane = text.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
            (named && sane && parts.len() <= 2).then(|| Owner(text.to_owned()))
        },
        allowed: "USER, USER:GROUP or :GROUP, names or numbers",
        write: |owner, f| f.write_str(&owner.0),
    }
    PortMode = Form::Text("OCTAL|copy|zerocopy|auto", "0660"), {
        read: |text| text.parse().map(PortMode::Xdp).or_else(|_: String| text.parse().map(PortMode::Bits)).ok(),
        allowed: "of a socket octal digits from 000 to 0777, such as 0660; of kind xdp copy, zerocopy, auto",
        quoted: "octal digits in quotes, such as \"0660\", or a word",
    }
    Mac = Form::Text("MAC", "52:54:00:12:34:56"), {
        read: |text| {
            let mac = text.parse::<crate::packet::Mac>().ok()?;
            (!mac.is_group() && mac.0 != [0; 6] && !text.contains('-')).then_some(Mac(mac.0))
        },
        allowed: "an address of one station, such as 52:54:00:12:34:56",
        write: |mac, f| crate::packet::Mac(mac.0).fmt(f),
    }
    VlanRange = Form::Text("VLAN[-VLAN]", "20-30"), {
        read: |text| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let number = |text: &str| text.parse().ok().filter(|number| (1..=MAX_VLAN).contains(number));
            let range = VlanRange(number(first)?, number(last)?);
            (range.0 <= range.1).then_some(range)
        },
        allowed: format_args!("a VLAN from 1 to {MAX_VLAN}, or a range such as 20-30"),
        write: |range, f| match range.0 == range.1 {
            true => range.0.fmt(f),
            false => write!(f, "{}-{}", range.0, range.1),
        },
    }
}

read_as_word!(Number<MIN, MAX> [const MIN: u32, const MAX: u32], List<T> [T: FromStr<Err: fmt::Display>]);

forms! {
    Number<MIN, MAX> [const MIN: u32, const MAX: u32] = Form::Number(MIN, MAX);
    List<T> [T: Value] = Form::List(if let Form::Text(how, _) = T::FORM { how } else { "N" }, &T::FORM, '+');
}

worded! {
    Source = Form::Text("MAC|vrrp", "vrrp");
}
