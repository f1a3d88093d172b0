//! The guests at both ends: a native ptnet driver with or without headers, on a switch or in a pipe, or a
//! native virtio-net driver.

use std::sync::Arc;

use sidecore_abi::virtio::{features, net_hdr};
use sidecore_driver::net::NetHdr;
use sidecore_driver::ptnet::{Config, Ptnet};
use sidecore_driver::session::{self, Want};
use sidecore_engine::device::ptnet::{functions, PtnetConfig};
use sidecore_engine::packet::Mac;
use sidecore_engine::slots::pipe::End as PipeEnd;
use sidecore_engine::transport::vfio_user::Functions;

use super::super::e1000::ends::{Driver, End};
use super::super::e1000::stage::{mac, Stage};
use super::super::engine::{listen, Direct};
use super::LARGE;
use crate::prelude::*;

/// Where a frame's number stands: behind Ethernet, IP and UDP headers, or TCP's.
const TAG: usize = 42;
const LARGE_TAG: usize = 54;
/// Slots and entries of all rings.
const RING: u16 = 1024;
/// Bytes of payload of each segment of a large frame.
const SEGMENT: u16 = 1448;

named! {
    /// What the guests have.
    pub enum Kind {
        /// ptnet without headers.
        Plain = "ptnet",
        /// ptnet with headers.
        Header = "ptnet+header",
        /// The two ends of a pipe.
        Pipe = "ptnet+pipe",
        /// virtio-net.
        Virtio = "virtio-net",
    }
}

/// A frame of `size` bytes from station `from` to the other one of its pair.
fn data(from: u8, size: usize) -> (Vec<u8>, Option<NetHdr>) {
    let mut frame = [&mac(from ^ 1)[..], &mac(from), &[0x88, 0xb5]].concat();
    frame.resize(size, 0x5a);
    if size < LARGE {
        return (frame, None);
    }
    // TCP over IPv4, with a checksum to be completed and segments to be cut where they are needed.
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let len = u16::try_from(size - 14).unwrap_or(u16::MAX);
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    frame[34..54]
        .copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let header = NetHdr {
        flags: net_hdr::F_NEEDS_CSUM,
        gso_type: net_hdr::GSO_TCPV4,
        hdr_len: 54,
        gso_size: SEGMENT,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    (frame, Some(header))
}

/// A guest at the next port of `stage`, which sends frames of `size` bytes; ptnet has buffers of `buf_size`
/// bytes. It reaches the registers of its card without messages, unless it `traps`: then they are messages,
/// as a VMM sends them.
pub fn end(stage: &mut Stage, kind: Kind, size: usize, buf_size: u32, traps: bool) -> Result<End> {
    let (port, number, path) = stage.port()?;
    let driver = if kind == Kind::Virtio {
        stage.engine.virtio(port, &path)?;
        let want = Want::default()
            .and_if(true, features::NET_MRG_RXBUF)
            .and_if(true, features::NET_CSUM | features::NET_GUEST_CSUM)
            .and_if(true, features::NET_HOST_TSO4 | features::NET_GUEST_TSO4);
        let config = session::Config { want, entries: RING, ..session::Config::default() };
        Driver::Virtio(Box::new(guest(&path, config)?))
    } else {
        let mac = Mac(mac(number));
        let mut settings = PtnetConfig { slots: RING.into(), buf_size, ..PtnetConfig::new(mac) };
        if kind == Kind::Pipe {
            let end = PipeEnd::join("bench", &settings.geometry().of_pipe(), false).map_err(text)?;
            settings.pipe = Some(end);
        }
        let scheduler = stage.engine.scheduler();
        let (nic, memory, beside) = functions(settings, &port, scheduler).map_err(text)?;
        let nic = listen(&path, Arc::clone(&port), Box::new(nic))?;
        let memory = listen(&path.with_extension("mem"), beside, Box::new(memory))?;
        let config = Config { header: kind == Kind::Header, ..Config::default() };
        let mut driver = Ptnet::open(&path, &config).map_err(text)?;
        if !traps {
            driver.client().shortcut(Box::new(Direct(nic.device())));
        }
        stage.engine.attach(Functions { nic, memory });
        Driver::Ptnet(Box::new(driver))
    };
    let (data, header) = data(number, size);
    Ok(End::new(driver, data, if size == LARGE { LARGE_TAG } else { TAG }, header))
}

/// Frames of `size` bytes that both rings hold.
pub fn room(size: usize) -> u64 {
    let buffers = size.div_ceil(1500).max(1) as u64;
    (u64::from(RING) - 1) / (2 * buffers).max(1)
}
