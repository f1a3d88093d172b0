//! On which NUMA node memory is.
//!
//! The `unsafe` is one system call. Its invariant: the kernel looks the address up and writes nothing but the word that is lent to it
//! for the call.

use super::piece::Piece;

/// `get_mempolicy(2)`: the node of the page at an address, instead of a policy.
const MPOL_F_NODE: libc::c_ulong = 1;
const MPOL_F_ADDR: libc::c_ulong = 2;

/// The node of the first page of `piece`, which is found or made if it is not there: for memory that is in use. `None`: the kernel
/// does not tell.
pub fn node_of(piece: &Piece) -> Option<usize> {
    let mut node: libc::c_int = -1;
    let flags = MPOL_F_NODE | MPOL_F_ADDR;
    let no_mask = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: `node` lives until the call is over; the address is only looked up, and one that is not mapped is an error.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            std::ptr::from_mut(&mut node),
            no_mask,
            0 as libc::c_ulong,
            piece.as_ptr(),
            flags,
        )
    };
    (result == 0).then(|| usize::try_from(node).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Mapping;

    #[test]
    fn memory_is_on_some_node() {
        let store = Mapping::anonymous(4096).unwrap();
        let piece = store.piece(0, 64).unwrap();
        let node = node_of(&piece);
        // Kernels without NUMA have no such call.
        let known = std::path::Path::new("/proc/self/numa_maps").exists();
        assert_eq!(node.is_some(), known, "{node:?}");
    }
}
