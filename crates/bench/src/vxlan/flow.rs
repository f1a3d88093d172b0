//! One flow of equal frames from the first guest to the second, by packet sockets, no faster than the frames
//! arrive.
//!
//! At most [`WINDOW`] frames are under way: fewer than a TAP or the kernel's backlog keeps, so neither loses
//! any, and the sender takes the processors no time for frames that would be dropped. While none arrives, it
//! sleeps. The frames are for no station of the guest, whose stack drops them when its interface has counted
//! them.

use std::net::Ipv4Addr;

use sidecore_pktgen::end::{host, Lane, Source};

use super::super::lane::{datagram, End, Flow as Loop};
use super::super::net::Received;
use super::stage::GUEST;
use crate::prelude::*;

/// Frames under way at most.
const WINDOW: u64 = 448;
/// How long the sender sleeps while none arrives.
const PAUSE: Duration = Duration::from_micros(20);

/// The frame, each time.
struct Same(Vec<u8>);

impl Same {
    /// From station `i` to the other one, in a packet of UDP that fills `bytes`, without check sequence.
    fn new(i: u8, bytes: usize) -> Same {
        let (station, at) = (|i: u8| [2, 0, 0, 0, 3, i], |i: u8| Ipv4Addr::new(10, 8, 1, 1 + i));
        let mut frame = vec![0; bytes];
        datagram(&mut frame, [station(1 - i), station(i)], [at(i), at(1 - i)], [4000, 4001]);
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
        let first = self.arrived.frames()?;
        until("a frame arrives", START, Duration::from_millis(5), || {
            for (end, frame) in [(&mut to, &mut back), (&mut self.from, &mut self.frame)] {
                if end.room()? > 0 {
                    end.send(1, frame)?;
                }
            }
            Ok((self.arrived.frames()? != first).then_some(()))
        })
    }

    fn push(&mut self, time: Duration) -> Result<(f64, u64)> {
        let (first, mut before) = (self.arrived.frames()?, 0);
        let came = || {
            let now = self.arrived.frames()? - first;
            if now == before {
                // What empties the window is what is measured.
                std::thread::sleep(PAUSE);
            }
            before = now;
            Ok(now)
        };
        let mut flow = Loop::default();
        let seconds = flow.run(&mut self.from, &mut self.frame, WINDOW, time, came)?;
        Ok((flow.came as f64 / seconds / 1e6, flow.lost))
    }
}

#[cfg(test)]
mod tests {
    use sidecore_engine::packet::Sum;

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
