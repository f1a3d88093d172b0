//! The daemon and the command line, from outside: one program for all, since each one more costs a link of
//! its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    missing_docs
)]

mod disk;
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../engine/tests/huge_pages/mod.rs"]
mod huge_pages;
mod rig;
#[path = "../../driver/tests/blk/work.rs"]
mod work;

mod bench;
mod bounds;
mod broker;
mod carrier;
mod cli;
mod control;
mod descriptors;
mod disk_errors;
mod disk_files;
mod disk_kill;
mod disk_lies;
mod disks;
mod doctor;
mod events;
mod explain;
mod files;
mod first_use;
mod groups;
mod honest;
mod host_rings;
mod hosts;
mod loops;
mod moderation;
mod msr;
mod neighbours;
mod openapi;
mod overlay;
mod packaging;
mod pktgen;
mod pktgen_host;
mod pktgen_netmap;
mod place;
mod ptnet;
mod ptnet_interface;
mod ptnet_pipe;
mod reserve;
mod restart;
mod ring;
mod router;
mod rtl8169;
mod sandbox;
mod service;
mod traffic;
mod tunnel;
mod upgrade;
mod vale;
mod virtio_user;
mod vlan;
mod web;
