//! Reservations for people and for programs.

use std::fmt::Write;

use serde::Serialize;
use sidecore_engine::state::status::VERSION;

use super::record::{Grant, Mechanism, Reservation};
use crate::table::percent;

/// Answer to `show reservations` and `reserve`.
#[derive(Debug, Serialize)]
pub struct Reservations<'r> {
    version: u32,
    reservations: Vec<View<'r>>,
}

#[derive(Debug, Serialize)]
struct View<'r> {
    #[serde(flatten)]
    reservation: &'r Reservation,
    /// The VMM has ended; the next `reserve`, and `--undo`, remove what is left.
    ended: bool,
    /// Threads that have ended, or for which somebody has changed what was reserved.
    changed: Vec<u32>,
}

impl<'r> Reservations<'r> {
    pub fn new(all: impl IntoIterator<Item = &'r Reservation>) -> Reservations<'r> {
        let view = |reservation: &'r Reservation| {
            let threads = reservation.threads.iter().map(|grant| grant.thread.id);
            let changed = threads.filter(|id| !reservation.holds(id)).map(|id| id.thread).collect();
            View { reservation, ended: !reservation.is_alive(), changed }
        };
        Reservations { version: VERSION, reservations: all.into_iter().map(view).collect() }
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for view in &self.reservations {
            let Reservation { name, asked, process, threads, .. } = view.reservation;
            let state = if view.ended { ", which has ended" } else { "" };
            let _ = writeln!(text, "{name}: {asked}, for process {}{state}", process.process);
            for grant in threads {
                let changed = !view.ended && view.changed.contains(&grant.thread.id.thread);
                let note = if changed { "; it has ended, or was changed since" } else { "" };
                let _ = writeln!(text, "  {}: {}{note}", grant.thread.title(), got(grant));
                for refusal in &grant.refused {
                    let _ = writeln!(text, "    not {}: {}", title(refusal.mechanism), refusal.reason);
                }
            }
        }
        match text.is_empty() {
            true => "nothing is reserved\n".to_owned(),
            false => text,
        }
    }
}

/// What a thread has, in words.
fn got(grant: &Grant) -> String {
    let Some(mechanism) = grant.mechanism else { return "nothing".to_owned() };
    let share = grant.share_ppm.map_or_else(String::new, |ppm| percent(ppm, 1_000_000));
    let what = match mechanism {
        Mechanism::Deadline => format!("{share} of a processor, guaranteed in each period"),
        Mechanism::Fifo | Mechanism::Rr => {
            format!("up to {share} of a processor, ahead of all ordinary threads")
        }
        Mechanism::CpuMax => format!("at most {share} of a processor, guaranteed nothing"),
        Mechanism::Affinity => "what other threads leave".to_owned(),
    };
    format!("{}, {what}, on {}", title(mechanism), grant.cpus)
}

fn title(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Deadline => "SCHED_DEADLINE",
        Mechanism::Fifo => "SCHED_FIFO",
        Mechanism::Rr => "SCHED_RR",
        Mechanism::CpuMax => "cpu.max",
        Mechanism::Affinity => "affinity",
    }
}
