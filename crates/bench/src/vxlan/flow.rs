//! One flow of equal frames from the first guest to the second, by packet sockets, no faster than the frames
//! arrive.
//!
//! At most [`WINDOW`] frames are under way: fewer than a TAP or the kernel's backlog keeps, so neither loses
//! any, and the sender takes the processors no time for frames that would be dropped. While that many are, it
//! sleeps. The frames are for no station of the guest, whose stack drops them when its interface has counted
//! them.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use sidecore_engine::packet::Sum;
use sidecore_pktgen::end::{host, Lane, Source};

use super::super::common::Result;
use super::super::lane::{udp, End};
use super::super::net::{Net, Received};
use super::super::ours::START;
use super::stage::GUEST;

/// Frames sent at once, and frames under way at most.
const BURST: usize = 64;
const WINDOW: u64 = 448;
/// How long the sender sleeps while so many are.
const PAUSE: Duration = Duration::from_micros(20);
/// Nothing came for so long: what is missing is lost.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// The frame, each time.
struct Same(Vec<u8>);

impl Same {
    /// From station `i` to the other one, in a packet of UDP that fills `bytes`, without check sequence.
    fn new(i: u8, bytes: usize) -> Same {
        let (station, at) = (|i: u8| [2, 0, 0, 0, 3, i], |i: u8| Ipv4Addr::new(10, 8, 1, 1 + i));
        let mut frame = udp([station(1 - i), station(i)], [at(i), at(1 - i)], [4000, 4001]).to_vec();
        frame.resize(bytes, 0);
        let len = |header: usize| u16::try_from(bytes - header).unwrap_or(u16::MAX).to_be_bytes();
        frame[16..18].copy_from_slice(&len(14));
        frame[38..40].copy_from_slice(&len(34));
        frame[24..26].fill(0);
        let sum = Sum::of(&frame[14..34]).checksum().to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
        Same(frame)
    }
}

impl Source for Same {
    fn fixed(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn write(&mut self, buffer: &mut [u8]) -> usize {
        buffer[..self.0.len()].copy_from_slice(&self.0);
        self.0.len()
    }
}

/// The sending end, and what the other counts.
pub struct Flow {
    from: End,
    frame: Same,
    arrived: Received,
}

impl Flow {
    /// With frames of `bytes` bytes from the first guest to the second.
    pub fn new(guests: &[Net; 2], bytes: usize) -> Result<Flow> {
        let end = |guest: &Net| guest.enter(|| End::host(host::Kind::Packet, GUEST, bytes));
        let arrived = guests[1].enter(|| Received::of(GUEST))?;
        let mut flow = Flow { from: end(&guests[0])?, frame: Same::new(0, bytes), arrived };
        // It is closed then: a socket would get a copy of each frame.
        flow.settle(end(&guests[1])?, Same::new(1, bytes))?;
        Ok(flow)
    }

    /// Sends for as long as `time`; million frames that arrived a second, and how many were lost.
    pub fn measure(&mut self, time: Duration) -> Result<(f64, u64)> {
        self.push(time / 4)?;
        self.push(time)
    }

    /// Sends single frames both ways until one arrives: all switches know both stations then.
    fn settle(&mut self, mut to: End, mut back: Same) -> Result<()> {
        let (begun, first) = (Instant::now(), self.arrived.frames()?);
        while self.arrived.frames()? == first {
            if begun.elapsed() > START {
                return Err("no frame arrives".to_owned());
            }
            for (end, frame) in [(&mut to, &mut back), (&mut self.from, &mut self.frame)] {
                if end.room()? > 0 {
                    end.send(1, frame)?;
                }
            }
            // Frames take their time, and nothing tells when links are up.
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn push(&mut self, time: Duration) -> Result<(f64, u64)> {
        let (from, frame) = (&mut self.from, &mut self.frame);
        let (start, first) = (Instant::now(), self.arrived.frames()?);
        let (mut sent, mut got, mut lost, mut heard) = (0, 0, 0, start);
        while start.elapsed() < time {
            let allowed = WINDOW.saturating_sub(sent - (got + lost).min(sent));
            let burst = BURST.min(usize::try_from(allowed).unwrap_or(BURST));
            match burst > 0 && from.room()? > 0 {
                true => sent += from.send(burst, frame)?.frames as u64,
                // What empties the window is what is measured.
                false => std::thread::sleep(PAUSE),
            }
            let now = self.arrived.frames()? - first;
            if now > got {
                (got, heard) = (now, Instant::now());
            } else if allowed == 0 && heard.elapsed() > LOST_AFTER {
                lost = sent - got.min(sent);
            }
        }
        Ok((got as f64 / start.elapsed().as_secs_f64() / 1e6, lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_sound_packets_of_their_length() {
        for (bytes, len) in [(60, [0, 46]), (1514, [5, 220])] {
            let frame = Same::new(0, bytes).0;
            assert_eq!((frame.len(), &frame[16..18]), (bytes, &len[..]));
            assert_eq!(Sum::of(&frame[14..34]).checksum(), 0);
        }
    }
}
