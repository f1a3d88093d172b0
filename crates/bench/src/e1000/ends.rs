//! Two native drivers that poll, with numbered frames between them.

use sidecore_driver::net::NetHdr;
use sidecore_driver::ptnet::Ptnet;

use super::nic::Nic;
use crate::engine::Engine;
use crate::prelude::*;

/// Frames that are taken at a time.
const LIMIT: usize = 256;

/// A driver.
pub enum Driver {
    /// A card's.
    Card(Nic),
    /// ptnet's.
    Ptnet(Box<Ptnet>),
    /// virtio-net's.
    Virtio(Box<NetDriver>),
}

/// One end: what it has sent and received.
pub struct End {
    pub driver: Driver,
    data: Vec<u8>,
    /// Where the number of a frame stands.
    tag: usize,
    /// The header of a frame that others may cut into segments, which goes alone.
    header: Option<NetHdr>,
    pub sent: u64,
    pub received: u64,
    pub wrong: u64,
}

/// How frames go from one end to the other.
#[derive(Clone, Copy)]
pub struct Flow {
    /// Frames of a publication, and frames under way in one direction.
    pub burst: usize,
    pub window: u64,
    /// Both directions at once.
    pub both_ways: bool,
}

/// What came of it.
pub struct Flown {
    pub frames: u64,
    /// Million frames a second, both directions added, and the same in Gbit/s of frames.
    pub mpps: f64,
    pub gbps: f64,
    /// Nanoseconds of the I/O core for each frame.
    pub ns_per_frame: f64,
}

impl End {
    /// Sends this frame again and again, with a number at `tag`.
    pub fn new(driver: Driver, data: Vec<u8>, tag: usize, header: Option<NetHdr>) -> End {
        End { driver, data, tag, header, sent: 0, received: 0, wrong: 0 }
    }

    /// Sends one frame that counts for nothing, and waits until it has come.
    pub fn greet(&mut self, to: &mut End) -> Result<()> {
        until("the first frame comes", START, Duration::ZERO, || {
            self.send(1)?;
            // Until both links are up it may be lost.
            let again = Instant::now() + Duration::from_millis(100);
            while to.received == 0 && Instant::now() < again {
                to.receive()?;
            }
            Ok((to.received > 0).then_some(()))
        })?;
        (self.sent, to.received, to.wrong) = (0, 0, 0);
        Ok(())
    }

    /// Sends as many of `burst` numbered frames as there is room for, with one publication.
    #[inline]
    pub fn send(&mut self, burst: usize) -> Result<()> {
        let (data, tag, first) = (&mut self.data, self.tag, self.sent);
        if let Some(header) = self.header {
            data[tag..tag + 8].copy_from_slice(&first.to_le_bytes());
            let sent = match &mut self.driver {
                Driver::Ptnet(driver) => {
                    let sent = driver.queue(&header.to_bytes(), data).map_err(text)?;
                    driver.publish().map_err(text)?;
                    sent
                }
                Driver::Virtio(driver) => driver.send_frame(0, header, data).map_err(text)?,
                Driver::Card(_) => return Err("a card's frames have no headers".to_owned()),
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
        let sent = match &mut self.driver {
            Driver::Card(driver) => driver.send_with(burst, fill),
            Driver::Ptnet(driver) => driver.send_with(burst, fill),
            Driver::Virtio(driver) => driver.send_with(0, burst, fill),
        };
        self.sent += sent.map_err(text)? as u64;
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
        let came = match &mut self.driver {
            Driver::Card(driver) => driver.receive(LIMIT, see),
            Driver::Ptnet(driver) => driver.receive(LIMIT, see),
            Driver::Virtio(driver) => driver.receive_up_to(0, LIMIT, |_, bytes| see(bytes)),
        };
        came.map(drop).map_err(text)
    }
}

impl Flow {
    /// Sends a burst, if the window has room for it, and takes what has come.
    #[inline]
    fn turn(self, from: &mut End, to: &mut End) -> Result<()> {
        if from.sent - to.received + self.burst as u64 <= self.window {
            from.send(self.burst)?;
        }
        to.receive()
    }

    /// Has frames go for as long as `time`, and until one has come; how many seconds.
    pub fn run(self, [a, b]: &mut [End; 2], time: Duration) -> Result<f64> {
        let (start, before, mut turns) = (Instant::now(), b.received, 0u32);
        loop {
            self.turn(a, b)?;
            if self.both_ways {
                self.turn(b, a)?;
            }
            turns = turns.wrapping_add(1);
            if turns % 64 == 0 && start.elapsed() >= time && b.received > before {
                return Ok(start.elapsed().as_secs_f64());
            }
        }
    }

    /// What this engine's I/O core and both ends do in `time`.
    pub fn measure(self, engine: &Engine, ends: &mut [End; 2], time: Duration) -> Result<Flown> {
        let count = |ends: &[End; 2]| ends[0].received + ends[1].received;
        let (before, busy) = (count(ends), engine.busy());
        let seconds = self.run(ends, time)?;
        let (frames, now) = (count(ends) - before, engine.busy());
        let ns_per_frame = (now.0 - busy.0) as f64 / (now.1 - busy.1).max(1) as f64;
        let mpps = frames as f64 / seconds / 1e6;
        Ok(Flown { frames, mpps, gbps: mpps * ends[0].data.len() as f64 * 8.0 / 1e3, ns_per_frame })
    }
}
