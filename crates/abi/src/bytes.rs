//! Words in and out of messages of a fixed size, little endian, behind a magic number and a version.

/// Fills a message from its start.
pub(crate) struct Writer<const N: usize> {
    /// The message.
    pub(crate) bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    /// A message that starts with these two.
    pub(crate) fn new(magic: u32, version: u32) -> Writer<N> {
        let mut writer = Writer { bytes: [0; N], at: 0 };
        writer.u32(magic);
        writer.u32(version);
        writer
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Reads a message from its start.
pub(crate) struct Reader<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Reader<N> {
    /// A reader behind magic number and version; `None` if the message is of another length, kind or version.
    pub(crate) fn new(bytes: &[u8], magic: u32, version: u32) -> Option<Reader<N>> {
        let mut reader = Reader { bytes: bytes.try_into().ok()?, at: 0 };
        (reader.u32() == magic && reader.u32() == version).then_some(reader)
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.raw())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.raw())
    }

    pub(crate) fn raw<const M: usize>(&mut self) -> [u8; M] {
        let mut raw = [0; M];
        raw.copy_from_slice(&self.bytes[self.at..self.at + M]);
        self.at += M;
        raw
    }
}
