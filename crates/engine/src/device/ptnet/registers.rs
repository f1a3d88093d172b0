//! The registers that a guest writes.

/// What the guest has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers {
    /// Features that it has.
    pub(super) features: u32,
    /// How its last command ended: 0, or an errno.
    pub(super) status: u32,
    /// High halves of addresses whose low half has not come yet.
    pub(super) high: [u32; 2],
    /// Where the guest's blocks begin, and ours; 0: nowhere.
    pub(super) blocks: [u64; 2],
}
