//! The e1000's communication status block: a page of the guest's memory by which a driver and the device tell
//! each other of work without register accesses, as in "Speeding Up Packet I/O in Virtual Machines" (Rizzo,
//! Lettieri, Maffione 2013, §3.5) and in FreeBSD's `lem` driver built with `NIC_PARAVIRT`.
//!
//! A device that has it says so by its PCI subsystem number ([`SUBSYSTEM`]). The driver zeroes a page, writes
//! its address to [`CSBAH`] and then [`CSBAL`], and sets [`Csb::guest_csb_on`]. Zero in [`CSBAL`] takes it
//! away; a reset by `CTRL.RST` does not. All fields are little endian.

use core::mem::{offset_of, size_of};

/// PCI subsystem number of a device that can do it.
pub const SUBSYSTEM: u16 = 0x1101;
/// Register: the page's address, low half. Writing it is what counts.
pub const CSBAL: u32 = 0x2830;
/// Register: high half; written first.
pub const CSBAH: u32 = 0x2834;
/// Bytes of the page, and its alignment.
pub const SIZE: usize = 4096;
/// A threshold that is never reached.
pub const NONE: u32 = u32::MAX;
/// [`Csb::guest_need_txkick`], [`Csb::host_need_txkick`]: wanted.
pub const WANTED: u32 = 1;
/// [`Csb::guest_need_txkick`]: the guest has seen that there is room again.
pub const SEEN: u32 = 2;

/// The block. The first 64 bytes are the guest's, the next are the host's but for `host_txcycles_lim`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Csb {
    /// Transmit tail.
    pub guest_tdt: u32,
    /// The guest waits for room in its transmit ring: [`WANTED`], [`SEEN`].
    pub guest_need_txkick: u32,
    /// The guest wants interrupts for received frames; 0 while it polls.
    pub guest_need_rxkick: u32,
    /// 1: this block counts. 0: the registers do.
    pub guest_csb_on: u32,
    /// Receive tail.
    pub guest_rdt: u32,
    /// By threshold: interrupt when the transmit head gets here. 0 and [`NONE`]: not.
    pub guest_txkick_at: u32,
    /// Later revisions only.
    pub guest_use_msix: u32,
    /// Keeps the two sides on lines of their own.
    pub pad: [u32; 9],
    /// Transmit head.
    pub host_tdh: u32,
    /// The guest must write `TDT` ([`WANTED`]). The guest sets it when it makes the block.
    pub host_need_txkick: u32,
    /// Rounds without work after which the host sleeps; by the guest.
    pub host_txcycles_lim: u32,
    /// Rounds without work.
    pub host_txcycles: u32,
    /// Receive head.
    pub host_rdh: u32,
    /// The guest must write `RDT`.
    pub host_need_rxkick: u32,
    /// Interrupt causes.
    pub host_isr: u32,
    /// By threshold: the guest must write `RDT` when its tail gets here.
    pub host_rxkick_at: u32,
    /// Later revisions only: address of a ring of virtio-net headers.
    pub vnet_ring_high: u32,
    /// Its low half.
    pub vnet_ring_low: u32,
}

const _: () = {
    assert!(offset_of!(Csb, guest_need_txkick) == 0x04);
    assert!(offset_of!(Csb, guest_need_rxkick) == 0x08);
    assert!(offset_of!(Csb, guest_csb_on) == 0x0c);
    assert!(offset_of!(Csb, guest_rdt) == 0x10);
    assert!(offset_of!(Csb, guest_txkick_at) == 0x14);
    assert!(offset_of!(Csb, host_tdh) == 0x40);
    assert!(offset_of!(Csb, host_need_txkick) == 0x44);
    assert!(offset_of!(Csb, host_txcycles_lim) == 0x48);
    assert!(offset_of!(Csb, host_txcycles) == 0x4c);
    assert!(offset_of!(Csb, host_rdh) == 0x50);
    assert!(offset_of!(Csb, host_need_rxkick) == 0x54);
    assert!(offset_of!(Csb, host_isr) == 0x58);
    assert!(offset_of!(Csb, host_rxkick_at) == 0x5c);
    assert!(offset_of!(Csb, vnet_ring_low) == 0x64);
    assert!(size_of::<Csb>() <= SIZE);
};
