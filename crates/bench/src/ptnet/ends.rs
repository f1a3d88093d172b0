//! The guests at both ends: a native ptnet driver with or without headers, on a switch or in a pipe, or a
//! native virtio-net driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_abi::virtio::{features, net_hdr};
use sidecore_driver::net::{NetDriver, NetHdr};
use sidecore_driver::ptnet::{Config, Ptnet as Driver};
use sidecore_driver::session::{self, Want};
use sidecore_engine::device::ptnet::{functions, PtnetConfig};
use sidecore_engine::packet::Mac;
use sidecore_engine::slots::pipe::End as PipeEnd;
use sidecore_engine::transport::vfio_user::Functions;

use super::super::common::{guest, text, Result};
use super::super::e1000::stage::{mac, Stage};
use super::super::engine::{listen, Direct};
use super::super::ours::START;
use super::LARGE;
use crate::runner::named;

/// Where a frame's number stands: behind Ethernet, IP and UDP headers, or TCP's.
const TAG: usize = 42;
const LARGE_TAG: usize = 54;
/// Frames that are taken at a time.
const LIMIT: usize = 256;
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

enum Nic {
    Ptnet(Box<Driver>),
    Virtio(Box<NetDriver>),
}

/// One end: what it has sent and received.
pub struct End {
    nic: Nic,
    data: Vec<u8>,
    header: NetHdr,
    tag: usize,
    pub sent: u64,
    pub received: u64,
    pub wrong: u64,
}

/// A frame of `size` bytes from station `from` to the other one of its pair.
fn data(from: u8, size: usize) -> (Vec<u8>, NetHdr) {
    let mut frame = [&mac(from ^ 1)[..], &mac(from), &[0x88, 0xb5]].concat();
    frame.resize(size, 0x5a);
    if size < LARGE {
        return (frame, NetHdr::default());
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
    (frame, header)
}

impl End {
    /// A guest at the next port of `stage`, which sends frames of `size` bytes; ptnet has buffers of
    /// `buf_size` bytes. It reaches the registers of its card without messages.
    pub fn new(stage: &mut Stage, kind: Kind, size: usize, buf_size: u32) -> Result<End> {
        End::with(stage, kind, size, buf_size, false)
    }

    /// The end of a guest with ptnet without headers whose accesses are messages, as a VMM sends them.
    pub fn that_traps(stage: &mut Stage, size: usize, buf_size: u32) -> Result<End> {
        End::with(stage, Kind::Plain, size, buf_size, true)
    }

    fn with(stage: &mut Stage, kind: Kind, size: usize, buf_size: u32, traps: bool) -> Result<End> {
        let (port, number, path) = stage.port()?;
        let nic = if kind == Kind::Virtio {
            stage.engine.virtio(port, &path)?;
            let want = Want::default()
                .and_if(true, features::NET_MRG_RXBUF)
                .and_if(true, features::NET_CSUM | features::NET_GUEST_CSUM)
                .and_if(true, features::NET_HOST_TSO4 | features::NET_GUEST_TSO4);
            let config = session::Config { want, entries: RING, ..session::Config::default() };
            Nic::Virtio(Box::new(guest(&path, config)?))
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
            let mut driver = Driver::open(&path, &config).map_err(text)?;
            if !traps {
                driver.client().shortcut(Box::new(Direct(nic.device())));
            }
            stage.engine.attach(Functions { nic, memory });
            Nic::Ptnet(Box::new(driver))
        };
        let (data, header) = data(number, size);
        let tag = if size == LARGE { LARGE_TAG } else { TAG };
        Ok(End { nic, data, header, tag, sent: 0, received: 0, wrong: 0 })
    }

    /// Frames that both rings hold.
    pub fn room(&self) -> u64 {
        let buffers = self.data.len().div_ceil(1500).max(1) as u64;
        (u64::from(RING) - 1) / (2 * buffers).max(1)
    }

    /// Kicks so far.
    pub fn kicks(&self) -> u64 {
        match &self.nic {
            Nic::Ptnet(driver) => driver.kicks(),
            Nic::Virtio(driver) => driver.stats().kicks,
        }
    }

    /// How long the last kick took; not measured for virtio-net.
    pub fn last_kick(&self) -> Duration {
        match &self.nic {
            Nic::Ptnet(driver) => driver.last_kick(),
            Nic::Virtio(_) => Duration::ZERO,
        }
    }

    /// Sends one frame that counts for nothing, and waits until it has come.
    pub fn greet(&mut self, to: &mut End) -> Result<()> {
        self.send(1, to)?;
        let end = Instant::now() + START;
        while to.received == 0 {
            to.receive()?;
            if Instant::now() > end {
                return Err("the first frame does not come".to_owned());
            }
        }
        (self.sent, to.received, to.wrong) = (0, 0, 0);
        Ok(())
    }

    /// Sends as many of `burst` numbered frames as there is room for, with one publication.
    #[inline]
    pub fn send(&mut self, burst: usize, _: &End) -> Result<()> {
        let (data, tag, first) = (&mut self.data, self.tag, self.sent);
        if data.len() == LARGE {
            data[tag..tag + 8].copy_from_slice(&first.to_le_bytes());
            let sent = match &mut self.nic {
                Nic::Ptnet(driver) => {
                    let sent = driver.queue(&self.header.to_bytes(), data).map_err(text)?;
                    driver.publish().map_err(text)?;
                    sent
                }
                Nic::Virtio(driver) => driver.send_frame(0, self.header, data).map_err(text)?,
            };
            self.sent += u64::from(sent);
            return Ok(());
        }
        let fill = |i: usize, buffer: &mut [u8]| {
            // The buffers hold the frame already; only the number is new.
            if buffer[..6] != data[..6] {
                buffer[..data.len()].copy_from_slice(data);
            }
            buffer[tag..tag + 8].copy_from_slice(&(first + i as u64).to_le_bytes());
            data.len()
        };
        let sent = match &mut self.nic {
            Nic::Ptnet(driver) => driver.send_with(burst, fill).map_err(text)?,
            Nic::Virtio(driver) => driver.send_with(0, burst, fill).map_err(text)?,
        };
        self.sent += sent as u64;
        Ok(())
    }

    /// Takes what has come.
    #[inline]
    pub fn receive(&mut self) -> Result<()> {
        let (received, wrong, len, tag) = (&mut self.received, &mut self.wrong, self.data.len(), self.tag);
        let mut see = |bytes: &[u8]| {
            let number = bytes.get(tag..tag + 8).and_then(|tag| tag.try_into().ok()).map(u64::from_le_bytes);
            if number != Some(*received) || bytes.len() != len {
                *wrong += 1;
            }
            *received += 1;
        };
        match &mut self.nic {
            Nic::Ptnet(driver) => driver.receive(LIMIT, see).map_err(text)?,
            Nic::Virtio(driver) => driver.receive_up_to(0, LIMIT, |_, bytes| see(bytes)).map_err(text)?,
        };
        Ok(())
    }
}
