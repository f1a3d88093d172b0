//! Lookup programs: whatever the bytes are, as text or as instructions, they are refused or come to an answer.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sidecore_engine::frame::Batch;
use sidecore_engine::port::PortId;
use sidecore_engine::switch::program::Program;

thread_local!(static BATCH: RefCell<Batch> = RefCell::new(Batch::new()));

fuzz_target!(|data: &[u8]| {
    let Some((&mode, rest)) = data.split_first() else { return };
    let program = match mode % 2 {
        0 => Program::from_instructions(rest),
        _ => Program::assemble(&String::from_utf8_lossy(rest)),
    };
    let Ok(program) = program else { return };
    BATCH.with_borrow_mut(|batch| ask(batch, mode, rest, &Arc::new(program)));
});

fn ask(batch: &mut Batch, mode: u8, rest: &[u8], program: &Arc<Program>) {
    batch.clear();
    assert!(batch.push_short(&rest[..rest.len().min(60)]) && batch.push_short(&[0xff; 64]));
    for frame in batch.frames() {
        let first = program.ask(PortId(u16::from(mode)), frame);
        // No state is carried from frame to frame but what lies on the stack, which a program may look at.
        let _ = (first, program.ask(PortId(1), frame));
    }
}
