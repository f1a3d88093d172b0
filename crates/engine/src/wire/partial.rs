//! Checksums that were left undone by a sender that does not say so.

use super::bytes::be16;
use super::checksum::Sum;
use super::ip::{Ip, IPV6_LEN, TCP, UDP};
use super::offload::Offload;

impl Offload {
    /// The facts about a frame whose checksum field holds the sum of its pseudo header, as a sender leaves it
    /// that counts on hardware to complete it; `None` for every other frame.
    ///
    /// A checksum that is complete may have that value by chance. Completing it does no harm: if the checksum
    /// was right, what comes out is the same number again. (The field, p, counts in the sum: with rest r, right
    /// means r + 2p = 0xffff, and the completed checksum is then the complement of r + p, which is p.)
    #[must_use]
    pub fn half_made(frame: &[u8]) -> Option<Offload> {
        let ip = Ip::parse(frame)?;
        let (protocol, l4) = ip.l4?;
        let csum_offset = match protocol {
            TCP => 16,
            UDP => 6,
            _ => return None,
        };
        let field = be16(frame, l4 + usize::from(csum_offset))?;
        // What the IP header says is there: short frames are padded (RFC 791 §3.1, RFC 8200 §3).
        let end = if ip.v6 {
            ip.at + IPV6_LEN + usize::from(be16(frame, ip.at + 4)?)
        } else {
            ip.at + usize::from(be16(frame, ip.at + 2)?)
        };
        let len = end.checked_sub(l4)?;
        let address = |at: usize| frame.get(at..at + ip.address_len());
        let pseudo = Sum::pseudo(address(ip.src)?, address(ip.dst)?, protocol, len);
        // A frame with padding cannot be described as one to complete: the padding would be summed as well. It
        // is zeros, which do not change a sum, unless a sender hides something there.
        let padding = frame.get(end..)?;
        if field != pseudo.value() || padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        let csum_start = u16::try_from(l4).ok()?;
        Some(Offload { flags: Self::NEEDS_CSUM, csum_start, csum_offset, ..Self::NONE })
    }
}
