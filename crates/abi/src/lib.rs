//! Layouts that two address spaces share: engine and guest, engine and native driver, engine and readers of
//! its counters.
//!
//! Only layouts live here, with their sizes checked at compile time: no code that touches memory and
//! no `unsafe`. All integers are little endian, as every supported host is.
#![no_std]
#![forbid(unsafe_code)]

mod bytes;
pub mod counters;
pub mod csb;
pub mod netmap;
pub mod pci;
pub mod ptnet;
pub mod ring;
pub mod vale;
pub mod vfio_user;
pub mod vhost_user;
pub mod virtio;
