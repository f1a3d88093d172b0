//! Programs that decide well, and programs that try what they must not.

use super::*;
use crate::frame::Batch;
use proptest::prelude::*;

fn program(text: &str) -> Arc<Program> {
    Arc::new(Program::assemble(text).unwrap())
}

fn ask(text: &str, bytes: &[u8]) -> Answer {
    let mut batch = Batch::new();
    assert!(batch.push_short(bytes));
    program(text).ask(PortId(3), &batch.frames()[0])
}

#[test]
fn answers_are_ports_everybody_or_nobody() {
    let frame = [7; 20];
    assert_eq!(ask("mov r0, 5\nexit", &frame), Answer::To(PortId(5)));
    assert_eq!(ask("lddw r0, 0xfffffffe\nexit", &frame), Answer::Everybody);
    assert_eq!(ask("mov r0, -2 ; sign or not\nexit", &frame), Answer::Everybody);
    assert_eq!(ask("mov r0, -1 # nobody\nexit", &frame), Answer::Drop);
    assert_eq!(ask("mov r0, 70000\nexit", &frame), Answer::To(PortId(u16::MAX)));
}

#[test]
fn the_block_holds_port_length_and_head() {
    let mut frame = [9; 30];
    frame[12] = 0x81;
    assert_eq!(ask("ldxw r0, [r1+0]\nexit", &frame), Answer::To(PortId(3)));
    assert_eq!(ask("ldxw r0, [r1+4]\nexit", &frame), Answer::To(PortId(30)));
    assert_eq!(ask("ldxb r0, [r1+20]\nexit", &frame), Answer::To(PortId(0x81)));
    // What lies behind a short frame is nothing of an earlier one.
    assert_eq!(ask("ldxdw r0, [r1+64]\nexit", &frame), Answer::To(PortId(0)));
}

#[test]
fn a_program_without_end_is_stopped() {
    assert_eq!(ask("again:\nja again\nexit", &[1; 14]), Answer::OutOfBudget);
    let loops = |n| format!("mov r2, {n}\nagain:\nsub r2, 1\njne r2, 0, again\nmov r0, 1\nexit");
    assert_eq!(ask(&loops(500), &[1; 14]), Answer::To(PortId(1)));
    assert_eq!(ask(&loops(520), &[1; 14]), Answer::OutOfBudget);
    let deep = "entrypoint:\ncall function_f\nexit\nfunction_f:\ncall function_f\nexit";
    assert_eq!(ask(deep, &[1; 14]), Answer::Fault);
}

#[test]
fn nothing_is_reached_but_what_was_given() {
    let frame = [1; 64];
    for text in [
        "ldxb r0, [r1-1]\nexit",
        "ldxb r0, [r1+72]\nexit",
        "ldxdw r0, [r1+65]\nexit",
        "mov r2, 0\nldxb r0, [r2+0]\nexit",
        "lddw r2, 0x7fffffffffff\nldxb r0, [r2+0]\nexit",
        "stxb [r1+0], r1\nexit",
        "stxdw [r10-4097], r1\nexit",
        "stxb [r10+4096], r1\nexit",
        "mov r2, 0\nmov r0, 1\ndiv r0, r2\nexit",
        "callx r1\nexit",
    ] {
        assert_eq!(ask(text, &frame), Answer::Fault, "{text}");
    }
    assert_eq!(ask("mov r2, 4\nstxdw [r10-8], r2\nldxdw r0, [r10-8]\nexit", &frame), Answer::To(PortId(4)));
    // After a fault in a call the next frame starts afresh.
    let text = "entrypoint:\nldxw r2, [r1+4]\njeq r2, 20, bad\nmov r0, 1\nexit\nbad:\ncall function_f\nexit\nfunction_f:\nldxb r0, [r2+0]\nexit";
    let program = program(text);
    let mut batch = Batch::new();
    assert!(batch.push_short(&[1; 20]) && batch.push_short(&[1; 21]));
    for _ in 0..20 {
        assert_eq!(program.ask(PortId(1), &batch.frames()[0]), Answer::Fault);
        assert_eq!(program.ask(PortId(1), &batch.frames()[1]), Answer::To(PortId(1)));
    }
}

#[test]
fn what_is_not_well_formed_is_not_loaded() {
    for (text, why) in [
        ("", "not"),
        ("nonsense r1", "assembled"),
        ("mov r11, 1\nexit", "not"),
        ("ja 5\nexit", "not loaded"),
        ("mov r10, 1\nexit", "not loaded"),
        ("div r0, 0\nexit", "not loaded"),
        ("lddw r0, 1\nja -2\nexit", "not loaded"),
    ] {
        let error = Program::assemble(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    let long = "mov r0, 1\n".repeat(MAX_INSTRUCTIONS) + "exit";
    assert!(Program::assemble(&long).unwrap_err().contains("4097 instructions"));
}

#[test]
fn programs_that_are_gone_leave_their_place() {
    let mut batch = Batch::new();
    assert!(batch.push_short(&[1; 14]));
    let kept = program("mov r0, 1\nexit");
    for n in 2..50u16 {
        let other = program(&format!("mov r0, {n}\nexit"));
        assert_eq!(other.ask(PortId(0), &batch.frames()[0]), Answer::To(PortId(n)));
        assert_eq!(kept.ask(PortId(0), &batch.frames()[0]), Answer::To(PortId(1)));
    }
    RUNNERS.with_borrow(|runners| assert!(runners.live.len() <= 3 && runners.budgets.len() <= 1));
}

/// The example of the documentation: frames by the VLAN that their tag names.
#[test]
fn the_example_sorts_by_vlan() {
    let text = include_str!("../../../../docs/examples/by-vlan.s");
    let frame = |vlan: u16| {
        let mut bytes = [2; 60];
        bytes[12..14].copy_from_slice(&[0x81, 0]);
        bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
        bytes
    };
    assert_eq!(ask(text, &frame(10)), Answer::To(PortId(1)));
    assert_eq!(ask(text, &frame(0x6000 | 20)), Answer::To(PortId(2)));
    assert_eq!(ask(text, &frame(30)), Answer::Drop);
    assert_eq!(ask(text, &[2; 60]), Answer::Everybody);
}

proptest! {
    /// Whatever the words are: a program, or an error; and a program always comes to an answer.
    #[test]
    fn no_text_does_harm(lines in prop::collection::vec(line(), 1..30), head in any::<[u8; 32]>()) {
        if let Ok(program) = Program::assemble(&lines.join("\n")) {
            let mut batch = Batch::new();
            prop_assert!(batch.push_short(&head));
            Arc::new(program).ask(PortId(1), &batch.frames()[0]);
        }
    }
}

fn line() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "mov", "add", "sub", "mul", "div", "lsh", "arsh", "ldxb", "ldxdw", "stxw", "stb", "ja", "jeq",
        "jsgt", "lddw", "call", "callx", "exit", "be16", "le64", "neg", "mod32", "jset",
    ]);
    (name, 0..12u8, -80i64..80, 0..12u8, 0..4u8).prop_map(|(name, a, n, b, form)| match form {
        0 => format!("{name} r{a}, {n}"),
        1 => format!("{name} r{a}, r{b}"),
        2 => format!("{name} r{a}, [r{b}{n:+}]"),
        _ if name == "exit" => name.to_owned(),
        _ if name == "ja" => format!("ja {n:+}"),
        _ => format!("{name} r{a}, r{b}, {n:+}"),
    })
}
