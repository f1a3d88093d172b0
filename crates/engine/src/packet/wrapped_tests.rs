//! For tests: packets behind all that may stand in front of a transport header.

use proptest::{collection::vec, prelude::*};

/// What stands between the station addresses and the IP header.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// A tag: its EtherType, and its control information.
    Tag(u16, u16),
    /// LLC and SNAP: the length that it says, and the organization.
    Snap(u16, [u8; 3]),
}

/// A header between that of IPv6 and the transport's: its number, and its bytes behind that of the next one.
#[derive(Clone, Debug)]
pub(crate) struct Extension(u8, Vec<u8>);

/// A packet that is wrapped up.
#[derive(Clone, Debug)]
pub(crate) struct Wrapped {
    pub links: Vec<Link>,
    pub v6: bool,
    /// IPv4 options, in words.
    pub options: usize,
    pub extensions: Vec<Extension>,
}

impl Wrapped {
    /// The frame with `rest` behind all headers, from address `src`, and where `rest` begins.
    pub fn frame(&self, src: u128, protocol: u8, rest: &[u8]) -> (Vec<u8>, usize) {
        let mut bytes = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1];
        for link in &self.links {
            match link {
                Link::Tag(kind, tci) => bytes.extend([kind.to_be_bytes(), tci.to_be_bytes()].concat()),
                Link::Snap(len, oui) => {
                    bytes.extend(len.to_be_bytes());
                    bytes.extend([0xaa, 0xaa, 3]);
                    bytes.extend(oui);
                }
            }
        }
        let next = |n: usize| self.extensions.get(n).map_or(protocol, |it| it.0);
        if self.v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0xee, 0xee, next(0), 64]);
            bytes.extend(src.to_be_bytes());
            bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99]);
        } else {
            let words = 5 + u8::try_from(self.options).unwrap();
            bytes.extend([8, 0, 0x40 | words, 0, 0xee, 0xee, 0, 0, 0x40, 0, 64, next(0), 0, 0]);
            bytes.extend(&src.to_be_bytes()[12..]);
            bytes.extend([192, 0, 2, 99]);
            bytes.resize(bytes.len() + 4 * self.options, 1);
        }
        for (n, Extension(_, behind)) in self.extensions.iter().enumerate() {
            bytes.push(next(n + 1));
            bytes.extend(behind);
        }
        let at = bytes.len();
        bytes.extend(rest);
        bytes.resize(bytes.len().max(60), 0);
        (bytes, at)
    }
}

fn link() -> impl Strategy<Value = Link> {
    let kinds = prop::sample::select(vec![0x8100, 0x88a8, 0x9100]);
    let tci = prop_oneof![Just(0u16), Just(0xa000), any::<u16>()];
    let oui = prop::sample::select(vec![[0, 0, 0], [0, 0, 0xf8]]);
    prop_oneof![
        3 => (kinds, tci).prop_map(|(kind, tci)| Link::Tag(kind, tci)),
        1 => (0u16..0x600, oui).prop_map(|(len, oui)| Link::Snap(len, oui)),
    ]
}

fn extension() -> impl Strategy<Value = Extension> {
    let units = |kinds: Vec<u8>| {
        (prop::sample::select(kinds), 0u8..4, any::<u8>()).prop_map(|(kind, units, fill)| {
            let mut bytes = vec![fill; 8 * usize::from(units) + 7];
            bytes[0] = units;
            Extension(kind, bytes)
        })
    };
    let authentication = (0u8..8).prop_map(|words| {
        let mut bytes = vec![7; 4 * usize::from(words) + 7];
        bytes[0] = words;
        Extension(51, bytes)
    });
    // The first of several, or the only one.
    let fragment = any::<bool>().prop_map(|more| Extension(44, vec![0, 0, more.into(), 1, 2, 3, 4]));
    prop_oneof![4 => units(vec![0, 43, 60]), 1 => units(vec![135, 139, 140]), 1 => authentication, 1 => fragment]
}

/// Packets of both families behind up to four tags and SNAP headers, and up to five extension headers of all
/// kinds.
pub(crate) fn wrapped() -> impl Strategy<Value = Wrapped> {
    (vec(link(), 0..=4), any::<bool>(), 0usize..=10, vec(extension(), 0..=5)).prop_map(
        |(links, v6, options, mut extensions)| {
            // IPv4 has only the authentication header.
            extensions.retain(|it| v6 || it.0 == 51);
            Wrapped { links, v6, options, extensions }
        },
    )
}
