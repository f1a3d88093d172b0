//! A lookup function that the operator brings: an eBPF program in user space.
//!
//! Theory of operation. The program is assembled and verified when it is loaded: every instruction is known,
//! every jump ends on one, no register but r10 is written that must not be. What cannot be known before is
//! checked while it runs: each load and store must lie inside of what it was given, and after [`BUDGET`]
//! instructions it is stopped. So a program can decide wrongly, and that is all.
//!
//! It is called for each frame with the address of a block in r1 ([`INPUT`] bytes, read-only, little-endian):
//!
//! ```text
//! 0   port   u32   number of the port by which the frame came in (`show ports`)
//! 4   len    u32   bytes of the frame
//! 8   head   64 bytes: the frame's first; those behind its end are zero
//! ```
//!
//! and answers in r0 with the number of a port, [`EVERYBODY`] or [`DROP`]. r10 leads to a stack of 512 bytes
//! for each of up to eight calls; what is on it at the start means nothing.
//!
//! The virtual machine is `solana-sbpf`, in its first version of the instruction set: interpreter, instruction
//! budget and checked memory, made to run hostile programs, and maintained. Its virtual machines cannot move
//! between threads, so each I/O core makes its own for a program at that program's first batch; from then on
//! nothing is allocated.

use std::cell::RefCell;
use std::sync::Arc;

use solana_sbpf::aligned_memory::AlignedMemory;
use solana_sbpf::assembler::assemble;
use solana_sbpf::ebpf::{HOST_ALIGN, MM_INPUT_START, MM_STACK_START};
use solana_sbpf::elf::Executable;
use solana_sbpf::error::{EbpfError, ProgramResult};
use solana_sbpf::memory_region::{MemoryMapping, MemoryRegion};
use solana_sbpf::program::{BuiltinProgram, FunctionRegistry, SBPFVersion};
use solana_sbpf::verifier::RequisiteVerifier;
use solana_sbpf::vm::{Config, ContextObject, EbpfVm};

use crate::frame::{Frame, HEAD};
use crate::port::PortId;

/// Instructions that a program may execute for one frame.
pub const BUDGET: u64 = 1024;
/// Instructions that a program may have.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Longest text of a program in bytes.
pub const MAX_TEXT: usize = 256 << 10;
/// Bytes of the block that a program is given.
pub const INPUT: usize = 8 + HEAD;
/// The answer that means every other port.
pub const EVERYBODY: u32 = 0xffff_fffe;
/// The answer that means none.
pub const DROP: u32 = 0xffff_ffff;

/// The instruction set that all implementations have.
const VERSION: SBPFVersion = SBPFVersion::V0;
const STACK_FRAME: usize = 512;
const MAX_CALLS: usize = 8;

/// What a program says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It goes to this port, if that is on the switch.
    To(PortId),
    /// It goes to every other port.
    Everybody,
    /// It goes nowhere.
    Drop,
    /// None: it was stopped after [`BUDGET`] instructions.
    OutOfBudget,
    /// None: it did what it must not, such as a load from outside of what it was given.
    Fault,
}

/// The instructions that are left.
struct InstructionBudget(u64);

impl ContextObject for InstructionBudget {
    fn consume(&mut self, amount: u64) {
        self.0 = self.0.saturating_sub(amount);
    }

    fn get_remaining(&self) -> u64 {
        self.0
    }
}

/// A verified program.
pub struct Program {
    executable: Executable<InstructionBudget>,
    loader: Arc<BuiltinProgram<InstructionBudget>>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} bytes)", self.executable.get_text_bytes().1.len())
    }
}

impl Program {
    /// Assembles and verifies a program: one instruction or label a line, comments behind `;`, `#` or `//`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn assemble(text: &str) -> Result<Program, String> {
        if text.len() > MAX_TEXT {
            return Err(format!("the program's text has {} bytes; at most {MAX_TEXT} are read", text.len()));
        }
        let loader = loader();
        let plain: String = text.lines().map(|line| format!("{}\n", without_comment(line))).collect();
        let executable = assemble::<InstructionBudget>(&plain, Arc::clone(&loader))
            .map_err(|e| format!("the program cannot be assembled: {e}"))?;
        Program::verified(executable, loader)
    }

    /// The program that consists of these instructions, eight bytes each.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_instructions(bytes: &[u8]) -> Result<Program, String> {
        let loader = loader();
        let functions = FunctionRegistry::default();
        let executable = Executable::from_text_bytes(bytes, Arc::clone(&loader), VERSION, functions)
            .map_err(|e| format!("the program cannot be read: {e}"))?;
        Program::verified(executable, loader)
    }

    fn verified(
        executable: Executable<InstructionBudget>,
        loader: Arc<BuiltinProgram<InstructionBudget>>,
    ) -> Result<Program, String> {
        let count = executable.get_text_bytes().1.len() / 8;
        if count > MAX_INSTRUCTIONS {
            return Err(format!("the program has {count} instructions; allowed: {MAX_INSTRUCTIONS}"));
        }
        executable
            .verify::<RequisiteVerifier>()
            .map_err(|e| format!("the program is not well-formed and was not loaded: {e}"))?;
        Ok(Program { executable, loader })
    }

    /// Lends the calling thread's virtual machine for this program.
    pub(super) fn run(self: &Arc<Self>, with: impl FnOnce(&mut Runner)) {
        RUNNERS.with_borrow_mut(|runners| {
            let place = runners.live.iter().position(|runner| Arc::ptr_eq(&runner.program, self));
            let place = place.unwrap_or_else(|| runners.add(self));
            if let Some(runner) = runners.live.get_mut(place) {
                with(runner);
            }
        });
    }

    /// What it says of a frame that came in by `port`. For tests and fuzzers.
    pub fn ask(self: &Arc<Self>, port: PortId, frame: &Frame) -> Answer {
        let mut answer = Answer::Fault;
        self.run(|runner| answer = runner.ask(port, frame));
        answer
    }
}

/// What a program is held to.
fn loader() -> Arc<BuiltinProgram<InstructionBudget>> {
    Arc::new(BuiltinProgram::new_loader(Config {
        max_call_depth: MAX_CALLS,
        stack_frame_size: STACK_FRAME,
        enable_stack_frame_gaps: false,
        enable_instruction_meter: true,
        enabled_sbpf_versions: VERSION..=VERSION,
        ..Config::default()
    }))
}

fn without_comment(line: &str) -> &str {
    let end = [";", "#", "//"].iter().filter_map(|mark| line.find(mark)).min();
    &line[..end.unwrap_or(line.len())]
}

thread_local! {
    /// This core's virtual machines.
    static RUNNERS: RefCell<Runners> = const { RefCell::new(Runners { live: Vec::new(), budgets: Vec::new() }) };
}

/// One thread's virtual machines, one for each program in use.
struct Runners {
    live: Vec<Runner>,
    /// A virtual machine borrows its budget for as long as it lives, so budgets live for ever; those of programs
    /// that are gone are used again.
    budgets: Vec<&'static mut InstructionBudget>,
}

impl Runners {
    /// Makes one for `program`; those of programs that no switch has any more go.
    #[cold]
    fn add(&mut self, program: &Arc<Program>) -> usize {
        for place in (0..self.live.len()).rev() {
            if Arc::strong_count(&self.live[place].program) == 1 {
                self.budgets.push(self.live.swap_remove(place).vm.context_object_pointer);
            }
        }
        let budget = self.budgets.pop().unwrap_or_else(|| Box::leak(Box::new(InstructionBudget(0))));
        self.live.push(Runner::new(Arc::clone(program), budget));
        self.live.len() - 1
    }
}

/// One thread's virtual machine for one program.
pub(super) struct Runner {
    /// Its memory map leads into the two blocks below, which therefore go after it.
    vm: EbpfVm<'static, InstructionBudget>,
    input: AlignedMemory<{ HOST_ALIGN }>,
    /// Reached by the program alone.
    _stack: AlignedMemory<{ HOST_ALIGN }>,
    program: Arc<Program>,
}

impl Runner {
    fn new(program: Arc<Program>, budget: &'static mut InstructionBudget) -> Runner {
        let input = AlignedMemory::zero_filled(INPUT);
        let mut stack = AlignedMemory::zero_filled(STACK_FRAME * MAX_CALLS);
        let regions = vec![
            MemoryRegion::new_writable(stack.as_slice_mut(), MM_STACK_START),
            MemoryRegion::new_readonly(input.as_slice(), MM_INPUT_START),
        ];
        let version = program.executable.get_sbpf_version();
        // It refuses regions that overlap; ours are apart. Without regions no access is allowed.
        let config = program.executable.get_config();
        let mapping = MemoryMapping::new(regions, config, version)
            .or_else(|_| MemoryMapping::new(Vec::new(), config, version));
        let mapping = match mapping {
            Ok(mapping) => mapping,
            Err(e) => unreachable!("a map of nothing: {e}"),
        };
        let vm = EbpfVm::new(Arc::clone(&program.loader), version, budget, mapping, STACK_FRAME * MAX_CALLS);
        Runner { vm, input, _stack: stack, program }
    }

    /// What the program says of `frame`, which came in by `port`.
    #[inline]
    pub(super) fn ask(&mut self, port: PortId, frame: &Frame) -> Answer {
        let head = frame.head_len();
        let input = self.input.as_slice_mut();
        input[..4].copy_from_slice(&u32::from(port.0).to_le_bytes());
        input[4..8].copy_from_slice(&frame.len.to_le_bytes());
        input[8..8 + head].copy_from_slice(&frame.head[..head]);
        input[8 + head..].fill(0);
        self.vm.call_depth = 0;
        self.vm.registers[1] = MM_INPUT_START;
        self.vm.context_object_pointer.0 = BUDGET;
        match self.vm.execute_program(&self.program.executable, true).1 {
            ProgramResult::Ok(answer) => answer_of(answer),
            ProgramResult::Err(EbpfError::ExceededMaxInstructions) => Answer::OutOfBudget,
            ProgramResult::Err(_) => Answer::Fault,
        }
    }
}

/// The lower half of r0 counts, as for a C function that returns a 32-bit number.
fn answer_of(r0: u64) -> Answer {
    let [a, b, c, d, ..] = r0.to_le_bytes();
    match u32::from_le_bytes([a, b, c, d]) {
        EVERYBODY => Answer::Everybody,
        DROP => Answer::Drop,
        // A number that no port can have is that of no port.
        number => u16::try_from(number).map_or(Answer::To(PortId(u16::MAX)), |n| Answer::To(PortId(n))),
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
