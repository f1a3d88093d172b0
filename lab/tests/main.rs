//! Real guests at the built daemon: one program for all, run with one thread, since emulated guests take all
//! processors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    missing_docs
)]

mod cards;

mod away;
mod boot;
mod disk;
mod disk_uefi;
mod dpdk;
mod e1000;
mod e1000x;
mod fairness;
mod group;
mod guest_router;
mod holder;
mod honest;
mod hosts;
mod kexec;
mod migration;
mod multiqueue;
mod netboot;
mod netns;
mod offloads;
mod packages;
mod ptnet;
mod ptnet_pipe;
mod r8169x;
mod restarts;
mod router;
mod rtl8169;
mod service;
mod tidy;
mod troubles;
mod uml;
mod unplug;
mod vlan;
mod web;
