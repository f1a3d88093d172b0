//! sidecore: a packet I/O engine for virtual machines, on cores of its own.
//!
//! | file | what |
//! |---|---|
//! | `cli` | every command and flag; help, man pages and completions come from it |
//! | `options` | the options of ports, switches and the daemon for `cli`, from the engine's table |
//! | `daemon` | `run`: the engine, its control socket, signals |
//! | `api` | the JSON of the control socket that is not the engine's own |
//! | `client` | HTTP over the control socket |
//! | `sandbox` | what a process of ours gives up at its start |
//! | `show`, `change`, `route`, `group`, `capture` | the commands that talk to a daemon |
//! | `events` | what has happened |
//! | `doctor` | why a port has no traffic |
//! | `top` | ports, queues, cores and drops on a terminal |
//! | `web` | a page that shows all of this |
//! | `place` | `place`: where I/O cores, guests' vCPUs and memory are, and bad placement |
//! | `reserve` | `reserve`: time of processors for the threads of a VMM, and `show reservations` |
//! | `pcapng` | cutting a capture into its blocks |
//! | `vale` | `vale-ctl` |
//! | `offline` | the counters file of a daemon that is gone |
//! | `generate` | what is made from `cli` and the tables of the configuration: man pages, completions |
//!
//! Two commands are crates of their own: `pkt-gen` is `sidecore_pktgen`, and `bench` starts the program
//! `sidecore-bench`.
//!
//! Exit codes: 0 is success; 1 is a failure, whose reason stands on standard error; 2 is a wrong command
//! line.
//!
//! [`main`] is all that this library offers. It is a library to be compiled beside the engine (see
//! `main.rs`).

mod api;
mod capture;
mod change;
mod cli;
mod client;
mod daemon;
mod doctor;
mod events;
mod explain;
mod generate;
mod group;
mod offline;
mod options;
mod pcapng;
mod place;
mod reserve;
mod route;
mod sandbox;
mod show;
mod table;
mod top;
mod trace;
mod vale;
mod web;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use sidecore_pktgen::{print, Outcome};

use crate::cli::{Cli, Command};

/// Runs the command that the process's arguments name, and returns the exit code of the process.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match &words[..] {
        // The benchmarks' own program knows them.
        [help, name, rest @ ..] if help == "help" && name == "bench" => {
            bench(&[&["help".into()], rest].concat())
        }
        _ => run(Cli::parse().command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("sidecore: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Run(args) => daemon::run(args),
        Command::Show(args) => show::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Restart(args) => change::restart(&args),
        Command::Log(args) => change::log(&args),
        Command::Add(args) => change::add(&args),
        Command::Del(args) => change::del(&args),
        Command::Set(args) => change::set(&args),
        Command::Acl(args) => change::acl(&args),
        Command::Drain(args) => group::drain(&args),
        Command::Undrain(args) => group::undrain(&args),
        Command::Route(command) => route::run(&command),
        Command::Explain(args) => explain::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Web(args) => web::run(&args),
        Command::Apply(args) => change::apply(&args),
        Command::Save(args) => change::save(&args),
        Command::Move(args) => change::move_queues(&args),
        Command::Resize(args) => change::resize(&args),
        Command::Cores(args) => change::set_active(&args),
        Command::Place(args) => place::run(&args),
        Command::Reserve(args) => reserve::run(&args),
        Command::ValeCtl(args) => vale::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::PktGen(args) => sidecore_pktgen::run(&args),
        Command::Bench { words } => bench(&words),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
        Command::Openapi => generate::openapi(),
        Command::Broker(args) => daemon::broker::serve(args),
        Command::Door => {
            apart("door", DOOR, sandbox::give_up_capabilities, sidecore_engine::sandbox::descriptors::serve)
        }
        // It opens what its broker could.
        Command::OpenDisk => apart("open-disk", OPEN_DISK, || Ok(()), sidecore_engine::disk::opener::serve),
        Command::Hold { path, of } => {
            let path = path.unwrap_or_default();
            let confine = || {
                // Before: what is looked up once on this host is looked up then.
                let stand_in = sidecore_engine::state::kinds::stand_in(&of);
                sandbox::confine_holder(&path);
                stand_in
            };
            let serve = |socket: &_| sidecore_engine::sandbox::holder::serve(socket, &path, confine);
            apart("hold", HOLD, sandbox::give_up_capabilities, serve)
        }
    }
}

/// `door`, `open-disk` and `hold`: a process that the daemon starts for itself gives up privileges, and
/// `serve`s the socket that is its standard input.
fn apart(
    what: &str,
    why: &str,
    give_up: impl FnOnce() -> Outcome,
    serve: impl FnOnce(&std::os::fd::OwnedFd) -> std::io::Result<()>,
) -> Outcome {
    use std::os::fd::AsFd;
    // What is missing there was told by the daemon, which has a log.
    let _ = (sandbox::settle(&[]), sandbox::hide(), give_up());
    // It was started through a link in /proc, whose name says nothing. Without a name it serves as well.
    let _ = std::ffi::CString::new(format!("sidecore-{what}")).map(|name| rustix::thread::set_name(&name));
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    socket.and_then(|socket| serve(&socket)).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => {
            format!("{what}: standard input is not the socket that it needs. This command is internal: {why}")
        }
        _ => format!("{what}: {e}"),
    })
}

/// `bench`: this process becomes the program of the benchmarks, which is in the same folder.
fn bench(words: &[OsString]) -> Outcome {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().map_err(|e| format!("bench: /proc/self/exe: {e}"))?;
    let program = program.with_file_name("sidecore-bench");
    let error = std::process::Command::new(&program).args(words).exec();
    Err(match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "bench: there is no {}: the package sidecore-bench has it; `make build` and `cargo build -p sidecore-bench` build it",
            program.display()
        ),
        _ => format!("bench: cannot start {}: {error}", program.display()),
    })
}

const DOOR: &str = "`sidecore run` starts it to receive the descriptors of VMMs, and it ends with its daemon";
const OPEN_DISK: &str = "`sidecore run` has it started to open a disk's file, and it ends when it has";
const HOLD: &str =
    "`sidecore run` starts one for each VMM of an e1000, e1000e, rtl8169 or ptnet port, to keep its connection while the \
                    daemon is restarted, and it ends by itself";
