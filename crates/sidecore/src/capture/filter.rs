//! A filter in tcpdump's language: tcpdump compiles it, and here it runs (bpf(4), McCanne and Jacobson,
//! 1993).
//!
//! Jumps lead forward only, so each run ends. A load beyond the frame refuses it, as the kernel's does.

use std::process::{Command, Stdio};

/// One instruction: what to do, how far to jump if a comparison holds and if not, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    jumps: [u8; 2],
    k: u32,
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Vec<Instruction>);

/// Words of memory that a program has.
const WORDS: usize = 16;
/// Most instructions, as in the kernel.
const MOST: usize = 4096;

impl Filter {
    /// Has tcpdump compile `expression`.
    ///
    /// # Errors
    /// There is no tcpdump, or it says that the expression is wrong.
    pub fn compile(expression: &str) -> Result<Filter, String> {
        let tcpdump = Command::new("tcpdump")
            .args(["-ddd", "-y", "EN10MB", "--", expression])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| {
                format!(
                    "filters need tcpdump, which compiles them: {e}; install it, or capture without --filter"
                )
            })?;
        if !tcpdump.status.success() {
            let said = String::from_utf8_lossy(&tcpdump.stderr);
            let last = said.lines().last().unwrap_or("").trim_start_matches("tcpdump: ");
            return Err(format!("--filter {expression:?}: {last}; see pcap-filter(7)"));
        }
        let text = String::from_utf8_lossy(&tcpdump.stdout);
        Filter::read(&text).ok_or_else(|| format!("--filter: tcpdump said what is no program: {text:?}"))
    }

    /// Reads what `tcpdump -ddd` prints: the number of instructions, and each in a line.
    fn read(text: &str) -> Option<Filter> {
        let mut lines = text.lines();
        let count: usize = lines.next()?.trim().parse().ok()?;
        let instruction = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let mut next = || words.next()?.parse::<u32>().ok();
            let (code, yes, no, k) = (next()?, next()?, next()?, next()?);
            let jumps = [yes.try_into().ok()?, no.try_into().ok()?];
            Some(Instruction { code: code.try_into().ok()?, jumps, k })
        };
        let all: Option<Vec<_>> = lines.map(instruction).collect();
        all.filter(|all| all.len() == count && (1..=MOST).contains(&count)).map(Filter)
    }

    /// Whether it takes the frame with these bytes, of the `len` that it had.
    pub fn takes(&self, bytes: &[u8], len: u32) -> bool {
        self.run(bytes, len).unwrap_or(0) != 0
    }

    /// What the program returns. `None`: it reads beyond the frame, or divides by zero.
    fn run(&self, bytes: &[u8], len: u32) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; WORDS]);
        let mut at = 0usize;
        let number = |from: u32, size: usize| {
            let from = usize::try_from(from).ok()?;
            let its = bytes.get(from..from.checked_add(size)?)?;
            Some(its.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)))
        };
        loop {
            let Instruction { code, jumps: [yes, no], k } = *self.0.get(at)?;
            at += 1;
            let size = match code & 0x18 {
                0x00 => 4,
                0x08 => 2,
                _ => 1,
            };
            let word = usize::try_from(k).unwrap_or(usize::MAX);
            let operand = if code & 0x08 == 0 { k } else { x };
            match code & 0x07 {
                // LD and LDX: a number, bytes at a place or behind one, memory, the length; IHL.
                0x00 | 0x01 => {
                    let value = match (code & 0xe0, code & 0x07) {
                        (0x00, _) => k,
                        (0x20, 0) => number(k, size)?,
                        (0x40, 0) => number(x.checked_add(k)?, size)?,
                        (0x60, _) => *memory.get(word)?,
                        (0x80, _) => len,
                        (0xa0, 1) => (number(k, 1)? & 0xf) * 4,
                        _ => return None,
                    };
                    *(if code & 1 == 0 { &mut a } else { &mut x }) = value;
                }
                0x02 => *memory.get_mut(word)? = a,
                0x03 => *memory.get_mut(word)? = x,
                0x04 => {
                    a = match code & 0xf0 {
                        0x00 => a.wrapping_add(operand),
                        0x10 => a.wrapping_sub(operand),
                        0x20 => a.wrapping_mul(operand),
                        0x30 => a.checked_div(operand)?,
                        0x40 => a | operand,
                        0x50 => a & operand,
                        0x60 => a.checked_shl(operand).unwrap_or(0),
                        0x70 => a.checked_shr(operand).unwrap_or(0),
                        0x80 => a.wrapping_neg(),
                        0x90 => a.checked_rem(operand)?,
                        0xa0 => a ^ operand,
                        _ => return None,
                    }
                }
                0x05 => {
                    let holds = match code & 0xf0 {
                        0x00 => {
                            at = at.checked_add(word)?;
                            continue;
                        }
                        0x10 => a == operand,
                        0x20 => a > operand,
                        0x30 => a >= operand,
                        0x40 => a & operand != 0,
                        _ => return None,
                    };
                    at += usize::from(if holds { yes } else { no });
                }
                0x06 => return Some(if code & 0x18 == 0x10 { a } else { k }),
                _ => match code & 0xf8 {
                    0x00 => x = a,
                    0x80 => a = x,
                    _ => return None,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_tcpdump_compiles_runs() {
        // ip and udp port 53, as libpcap 1.10 has it.
        let text = "13\n40 0 0 12\n21 0 10 2048\n48 0 0 23\n21 0 8 17\n40 0 0 20\n69 6 0 8191\n177 0 0 14\n72 0 0 14\n21 2 0 53\n72 0 0 16\n21 0 1 53\n6 0 0 262144\n6 0 0 0\n";
        let filter = Filter::read(text).unwrap();
        let frame = |protocol: u8, port: u16, options: u8| {
            let mut bytes = vec![0u8; 60];
            (bytes[12], bytes[14], bytes[23]) = (8, 0x45 + options, protocol);
            let at = 36 + usize::from(options) * 4;
            bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
            bytes
        };
        let takes = |bytes: &[u8]| filter.takes(bytes, 60);
        assert_eq!(
            [takes(&frame(17, 53, 0)), takes(&frame(17, 53, 2)), takes(&frame(17, 54, 0))],
            [true, true, false]
        );
        assert_eq!([takes(&frame(6, 53, 0)), takes(&frame(17, 53, 0)[..30])], [false, false]);
    }

    proptest! {
        /// Whatever the program is, a run ends and reads nothing that is not there.
        #[test]
        fn runs_end(
            program in prop::collection::vec((any::<u16>(), any::<[u8; 2]>(), 0u32..70), 1..40),
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let program = program.into_iter().map(|(code, jumps, k)| Instruction { code: code % 256, jumps, k });
            Filter(program.collect()).takes(&bytes, 64);
        }
    }

    #[test]
    fn what_is_no_program_is_refused() {
        for text in ["", "1", "2\n6 0 0 0", "1\n6 0 0", "1\n6 0 256 0", "0"] {
            assert_eq!(Filter::read(text), None, "{text}");
        }
    }
}
