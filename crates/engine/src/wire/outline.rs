//! The outline of an IPv4 packet, for devices that find their way through headers themselves.

use super::bytes::be16;
use super::ip::Ip;

/// Where the parts of an IPv4 packet lie; all places count from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline4 {
    /// Where the header begins.
    pub at: usize,
    /// The first byte after it.
    pub transport: usize,
    /// The first byte after the packet, by its header; the frame may be shorter.
    pub end: usize,
    /// The transport protocol; none of a fragment.
    pub protocol: Option<u8>,
    /// Source and destination address.
    pub src: usize,
    /// See `src`.
    pub dst: usize,
}

impl Outline4 {
    /// Reads the header of the frame that begins with `head`. `None`: not IPv4, or not a whole and well-formed fixed header.
    #[must_use]
    pub fn of(head: &[u8]) -> Option<Outline4> {
        let ip = Ip::parse(head).filter(|ip| !ip.v6)?;
        let total = usize::from(be16(head, ip.at + 2)?);
        let protocol = ip.l4.map(|(protocol, _)| protocol);
        Some(Outline4 {
            at: ip.at,
            transport: ip.end,
            end: ip.at + total,
            protocol,
            src: ip.src,
            dst: ip.dst,
        })
    }
}
