//! The engine, by its own interfaces and over sockets: one program for all, since each one more costs a link
//! of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    missing_docs
)]

mod cards;
mod frames;
mod huge_pages;
mod nics;
mod rig;
mod scratch;

mod batch_bounds;
mod capture;
mod cloud_hypervisor;
mod e1000;
mod livelock;
mod nic;
mod ptnet;
mod ptnet_pipe;
mod router_kernel;
mod scheduling;
mod tap;
mod vfio_user;
mod vfio_user_guest;
mod vhost_user;
mod virtq;
