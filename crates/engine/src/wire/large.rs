//! Headers of frames that are to be segmented, as Intel's NICs take them from drivers.
//!
//! Such drivers leave the length fields of IP and the length in the TCP seed out: the NIC fills them in
//! segment by segment. A receiver that takes the frame whole (virtio 1.2 §5.1.6.3) wants them to be there.

use super::bytes::be16;
use super::checksum::Sum;
use super::ip::Ip;
use super::offload::{BadOffload, Gso, Offload};

impl Offload {
    /// Writes into `header`, the first bytes of a frame of `frame_len` bytes up to the checksum field at
    /// least, what its lengths say: IP's length, IPv4's checksum and the seed of the transport checksum.
    ///
    /// # Errors
    /// If the header is not that of an IP packet of the kind that these facts name, or the packet is longer
    /// than IP can express.
    #[allow(
        clippy::indexing_slicing,
        reason = "`Ip::parse` has found the fixed header and both addresses before the transport header; that begins at `start`, \
                  ip.end <= start, and start <= seed_at, seed_at + 2 <= header.len() were checked"
    )]
    pub fn fill_in(&self, header: &mut [u8], frame_len: usize) -> Result<(), BadOffload> {
        let ip = Ip::parse(header).ok_or(BadOffload::NotIp)?;
        let (start, offset) = (usize::from(self.csum_start), usize::from(self.csum_offset));
        let (protocol, _) = self.gso.transport();
        if self.gso == Gso::None || ip.l4 != Some((protocol, start)) {
            return Err(BadOffload::WrongProtocol);
        }
        let (field, from) = if ip.v6 { (ip.at + 4, ip.end) } else { (ip.at + 2, ip.at) };
        let length =
            u16::try_from(frame_len - from.min(frame_len)).map_err(|_| BadOffload::SegmentTooLong)?;
        let seed_at = start + offset;
        if frame_len < start || seed_at + 2 > header.len() || ip.end > start {
            return Err(BadOffload::HeaderCut);
        }
        header[field..field + 2].copy_from_slice(&length.to_be_bytes());
        if !ip.v6 {
            let at = ip.at + 10;
            header[at..at + 2].copy_from_slice(&[0; 2]);
            let sum = Sum::of(&header[ip.at..ip.end]).checksum();
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let address = ip.address_len();
        let (src, dst) = (&header[ip.src..ip.src + address], &header[ip.dst..ip.dst + address]);
        let seed = Sum::pseudo(src, dst, protocol, frame_len - start).value();
        header[seed_at..seed_at + 2].copy_from_slice(&seed.to_be_bytes());
        debug_assert_eq!(be16(header, seed_at), Some(seed));
        Ok(())
    }
}
