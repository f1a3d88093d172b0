//! A load whose frames come back: sends numbered frames through a port and accounts for every one.
//!
//! Theory of operation. Frames belong to flows (UDP source ports), spread over the queue pairs; each carries
//! its flow, a number within it, and bytes that follow from the number. Flows keep their order, so what
//! comes back is compared with the next number of its flow. The load works in ticks and sleeps between
//! them, so that the peer may share its processor; it never has more frames on the way than half a ring
//! holds, so that no ring overflows while one of the two waits for the processor. What has not come back
//! when nothing came for a while is lost.

use std::net::Ipv4Addr;

use super::lane::datagram;
use crate::prelude::*;

/// Flows of each queue pair.
const FLOWS: u16 = 16;
/// Frames given to a queue at once.
const BURST: u64 = 32;
/// From one look to the next.
const TICK: Duration = Duration::from_micros(50);
/// Nothing came back in so many ticks: what is missing is lost. Five seconds at least, and not the time in
/// which we did not run ourselves.
const LOST_AFTER: u32 = 100_000;
/// Looks before a frame is taken for lost, while it is found out whether anything comes back at all.
const FIRST_PATIENCE: u32 = 2_000;
/// Where our numbers lie: behind Ethernet, IPv4 and UDP headers.
const TAG: usize = 42;
/// Bytes of flow and number.
const TAG_LEN: usize = 10;
/// The shortest frame: one with a tag.
pub const SHORTEST: usize = 60;

/// What became of the frames.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Account {
    /// Frames handed to the device.
    pub sent: u64,
    /// Frames that came back.
    pub received: u64,
    /// Frames that did not.
    pub lost: u64,
    /// Frames that came back twice, after a later one of their flow, or changed.
    pub wrong: u64,
    /// Million frames a second, from the first sent to the last received.
    pub mpps: f64,
}

/// How much to send.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// For a time.
    Time(Duration),
    /// A number of frames.
    Frames(u64),
}

/// The load.
pub struct Echo {
    driver: NetDriver,
    pairs: u16,
    frame: Vec<u8>,
    window: u64,
    /// The next number that each flow sends, and that each should receive.
    next: Vec<(u64, u64)>,
    chunk: u64,
}

impl Echo {
    /// A load of frames of `len` bytes from `from` to `to`, with at most `window` on the way.
    pub fn new(driver: NetDriver, from: [u8; 6], to: [u8; 6], len: usize, window: u64) -> Echo {
        let pairs = driver.config().pairs;
        let frame = template(from, to, len.max(SHORTEST));
        let next = vec![(0, 0); usize::from(pairs * FLOWS)];
        Echo { driver, pairs, frame, window, next, chunk: 0 }
    }

    /// Sends single frames until all flows come back; forgets what was lost meanwhile.
    pub fn warm_up(&mut self, limit: Duration) -> Result<(), String> {
        let start = Instant::now();
        loop {
            // As many as it takes to visit every queue.
            let round = BURST * u64::from(self.pairs);
            let account = self.run(Amount::Frames(round), None, FIRST_PATIENCE)?;
            // What is late from an earlier round is wrong in this one.
            if account.lost == 0 && account.wrong == 0 {
                return Ok(());
            }
            if start.elapsed() > limit {
                return Err(format!("no frames come back within {limit:?} ({account:?} of the last)"));
            }
        }
    }

    /// Sends as fast as frames come back, or `rate` frames a second.
    pub fn measure(&mut self, amount: Amount, rate: Option<f64>) -> Result<Account, String> {
        self.run(amount, rate, LOST_AFTER)
    }

    fn run(&mut self, amount: Amount, rate: Option<f64>, patience: u32) -> Result<Account, String> {
        let mut account = Account::default();
        let start = Instant::now();
        let (mut heard, mut silent) = (start, 0);
        let mut forgiven = 0;
        loop {
            let left = match amount {
                Amount::Time(time) if start.elapsed() >= time => 0,
                Amount::Time(_) => u64::MAX,
                Amount::Frames(frames) => frames - account.sent,
            };
            let due = rate.map_or(u64::MAX, |rate| whole(rate * start.elapsed().as_secs_f64()));
            let flying = account.sent.saturating_sub(account.received + forgiven);
            let room = self.window.saturating_sub(flying);
            self.send(left.min(due.saturating_sub(account.sent)).min(room), &mut account)?;
            silent += 1;
            if self.receive(&mut account)? > 0 {
                (heard, silent) = (Instant::now(), 0);
            }
            let missing = account.sent.saturating_sub(account.received + forgiven);
            if missing == 0 {
                silent = 0;
            }
            if left == 0 && (missing == 0 || silent > patience) {
                break;
            }
            if silent > patience {
                forgiven += missing;
            }
            std::thread::sleep(TICK);
        }
        // Both ends agree again about what comes next.
        self.next.iter_mut().for_each(|(sent, received)| *received = *sent);
        account.lost = account.sent.saturating_sub(account.received);
        account.mpps = account.received as f64 / heard.duration_since(start).as_secs_f64().max(1e-9) / 1e6;
        Ok(account)
    }

    fn send(&mut self, mut count: u64, account: &mut Account) -> Result<(), String> {
        while count > 0 {
            let pair = u16::try_from(self.chunk % u64::from(self.pairs)).unwrap_or(0);
            let (frame, next) = (&self.frame, &mut self.next);
            let burst = usize::try_from(count.min(BURST)).unwrap_or(0);
            let sent = self.driver.send_with(pair, burst, |i, bytes| {
                let flow = pair * FLOWS + u16::try_from(i).unwrap_or(0) % FLOWS;
                let number = &mut next[usize::from(flow)].0;
                let len = frame.len().min(bytes.len());
                bytes[..len].copy_from_slice(&frame[..len]);
                write_tag(&mut bytes[..len], flow, *number);
                *number += 1;
                len
            });
            let sent = sent.map_err(|e| e.to_string())? as u64;
            account.sent += sent;
            self.chunk += 1;
            count -= sent;
            if sent < burst as u64 {
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, account: &mut Account) -> Result<usize, String> {
        let mut frames = 0;
        for pair in 0..self.pairs {
            let (template, next) = (&self.frame, &mut self.next);
            let got = self.driver.receive(pair, |_, bytes| {
                match read_tag(bytes, template) {
                    Some((flow, number)) if usize::from(flow) < next.len() => {
                        let expected = &mut next[usize::from(flow)].1;
                        if number < *expected {
                            account.wrong += 1;
                        } else {
                            *expected = number + 1;
                        }
                    }
                    _ => account.wrong += 1,
                }
                account.received += 1;
            });
            frames += got.map_err(|e| e.to_string())?;
        }
        Ok(frames)
    }
}

/// A UDP datagram; the bytes behind the tag count up.
fn template(from: [u8; 6], to: [u8; 6], len: usize) -> Vec<u8> {
    let (ips, ports) = ([[10, 0, 0, 1], [10, 0, 0, 2]].map(Ipv4Addr::from), [0, 9]);
    let mut frame = vec![0; len];
    datagram(&mut frame, [to, from], ips, ports);
    frame.iter_mut().enumerate().skip(TAG).for_each(|(i, byte)| *byte = i.to_le_bytes()[0]);
    frame
}

fn write_tag(frame: &mut [u8], flow: u16, number: u64) {
    // The flow is the source port, too, so that switches see it.
    frame[34..36].copy_from_slice(&(0x4000 + flow).to_be_bytes());
    frame[TAG..TAG + 2].copy_from_slice(&flow.to_le_bytes());
    frame[TAG + 2..TAG + TAG_LEN].copy_from_slice(&number.to_le_bytes());
}

/// Flow and number of a frame that came back whole.
fn read_tag(frame: &[u8], template: &[u8]) -> Option<(u16, u64)> {
    let same = frame.len() == template.len()
        // Its sender's address is now its receiver's.
        && frame[..6] == template[6..12]
        && frame[TAG + TAG_LEN..] == template[TAG + TAG_LEN..];
    let tag = frame.get(TAG..TAG + TAG_LEN).filter(|_| same)?;
    Some((u16::from_le_bytes(tag[..2].try_into().ok()?), u64::from_le_bytes(tag[2..].try_into().ok()?)))
}
