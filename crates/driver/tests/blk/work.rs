//! Random work on a disk, each block of which has a model: what it may hold.

use std::collections::HashMap;
use std::time::Duration;

use sidecore_driver::blk::Woken;
use sidecore_driver::{Disk, Request, Status, Tag};

pub const WAIT: Duration = Duration::from_secs(30);

/// Bytes of a block, the unit of this work.
pub const BLOCK: usize = 4096;

/// Small numbers that follow from a seed (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// The bytes of version `version` of a block: every eighth follows from both. Version 0 is zeroes.
pub fn content(block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK];
    }
    (0..BLOCK as u64 / 8).flat_map(|n| (block << 40 | version << 12 | n).to_le_bytes()).collect()
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// A block is read.
    Read(u64),
    /// A block's next version; 0 for zeroes.
    Write(u64, u64),
    Flush,
}

/// Work on one disk: at most one request a block, so that what it reads is known.
pub struct Work {
    random: Random,
    /// The version of each block.
    pub blocks: Vec<u64>,
    busy: Vec<bool>,
    asked: HashMap<Tag, Asked>,
    next_version: u64,
    pub zeroes: bool,
    pub answered: u64,
    /// Answers that came before those to older requests.
    pub overtaken: u64,
}

impl Work {
    pub fn new(seed: u64, blocks: u64) -> Self {
        Self {
            random: Random(seed | 1),
            blocks: vec![0; blocks as usize],
            busy: vec![false; blocks as usize],
            asked: HashMap::new(),
            next_version: 1,
            zeroes: true,
            answered: 0,
            overtaken: 0,
        }
    }

    /// Submits as much as there is room for.
    pub fn fill(&mut self, disk: &mut Disk) {
        for _ in 0..64 {
            if self.random.below(16) == 0 {
                let Some(tag) = disk.submit(Request::Flush).unwrap() else { return };
                self.asked.insert(tag, Asked::Flush);
            }
            let block = self.random.below(self.blocks.len() as u64);
            if std::mem::replace(&mut self.busy[block as usize], true) {
                continue;
            }
            let sector = block * (BLOCK as u64 / 512);
            let range = sidecore_driver::blk::Range { sector, sectors: 8, unmap: false };
            let (asked, tag) = match self.random.below(8) {
                0..=3 => (Asked::Read(block), disk.submit(Request::Read { sector, len: BLOCK })),
                4 if self.zeroes => (Asked::Write(block, 0), disk.submit(Request::WriteZeroes(&[range]))),
                _ => {
                    self.next_version += 1;
                    let data = content(block, self.next_version);
                    let write = Request::Write { sector, data: &data };
                    (Asked::Write(block, self.next_version), disk.submit(write))
                }
            };
            let Some(tag) = tag.unwrap() else {
                self.busy[block as usize] = false;
                return;
            };
            self.asked.insert(tag, asked);
        }
    }

    /// Takes one answer.
    pub fn take(&mut self, tag: Tag, status: Status, data: &[u8]) {
        let asked = self.asked.remove(&tag).expect("an answer that nobody waits for");
        assert_eq!(status, Status::Ok, "{asked:?}");
        let block = match asked {
            Asked::Read(block) => {
                let version = self.blocks[block as usize];
                assert!(data == content(block, version), "block {block} is not at version {version}");
                Some(block)
            }
            Asked::Write(block, version) => {
                self.blocks[block as usize] = version;
                Some(block)
            }
            Asked::Flush => None,
        };
        if let Some(block) = block {
            self.busy[block as usize] = false;
        }
        self.overtaken += u64::from(self.asked.keys().any(|other| *other < tag));
        self.answered += 1;
    }

    /// Polls once; waits if there was nothing.
    pub fn poll(&mut self, disk: &mut Disk) {
        if disk.poll(|tag, status, data| self.take(tag, status, data)).unwrap() == 0 {
            assert_eq!(disk.wait(WAIT).unwrap(), Woken::Answers, "{} in flight", disk.in_flight());
        }
    }

    /// Works until so many answers came, then lets all requests end.
    pub fn run(&mut self, disk: &mut Disk, answers: u64) {
        let end = self.answered + answers;
        while self.answered < end {
            self.fill(disk);
            self.poll(disk);
        }
        self.finish(disk);
    }

    /// Waits for all answers.
    pub fn finish(&mut self, disk: &mut Disk) {
        while disk.in_flight() > 0 {
            self.poll(disk);
        }
        assert!(self.asked.is_empty() && disk.stats().submitted == disk.stats().answered);
    }

    /// Reads every block.
    pub fn verify(&mut self, disk: &mut Disk) {
        for (block, version) in (0u64..).zip(self.blocks.clone()) {
            let read = Request::Read { sector: block * 8, len: BLOCK };
            let (status, data) = disk.ask(read, WAIT).unwrap();
            assert_eq!(status, Status::Ok);
            assert!(data == content(block, version), "block {block} is not at version {version}");
        }
    }
}
