//! Replays what the fuzz targets have found: each input in `seeds` reaches code that no other one reaches, or
//! was a find. Here as modules, with the targets' own assertions, and without the fuzzer.

#[path = "../fuzz_targets/agent.rs"]
mod agent;
#[path = "../fuzz_targets/attach.rs"]
mod attach;
#[path = "../fuzz_targets/broker.rs"]
mod broker;
#[path = "../fuzz_targets/config.rs"]
mod config;
#[path = "../fuzz_targets/disk.rs"]
mod disk;
#[path = "../fuzz_targets/e1000.rs"]
mod e1000;
#[path = "../fuzz_targets/fpm.rs"]
mod fpm;
#[path = "../fuzz_targets/graph.rs"]
mod graph;
#[path = "../fuzz_targets/messages.rs"]
mod messages;
#[path = "../fuzz_targets/netmap.rs"]
mod netmap;
#[path = "../fuzz_targets/ptnet.rs"]
mod ptnet;
#[path = "../fuzz_targets/requests.rs"]
mod requests;
#[path = "../fuzz_targets/rings.rs"]
mod rings;
#[path = "../fuzz_targets/router.rs"]
mod router;
#[path = "../fuzz_targets/rtl8169.rs"]
mod rtl8169;
#[path = "../fuzz_targets/tables.rs"]
mod tables;
#[path = "../fuzz_targets/tunnel.rs"]
mod tunnel;
#[path = "../fuzz_targets/vfio.rs"]
mod vfio;
#[path = "../fuzz_targets/wire.rs"]
mod wire;

use std::sync::{Mutex, PoisonError};

/// One target at a time: some look at what their process holds.
static TURN: Mutex<()> = Mutex::new(());

/// Names the input of a target that panicked.
struct Input(String);

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("input: {}", self.0);
        }
    }
}

/// Runs every input of target `name`.
fn replay(name: &str, run: fn(&[u8])) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = format!("{}/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{dir}: {e}"));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{dir} is empty");
    for path in paths {
        let input = std::fs::read(&path).unwrap();
        let _named = Input(path.display().to_string());
        run(&input);
    }
}

macro_rules! targets {
    ($($name:ident),*) => {
        mod replays {
            $(#[test]
            fn $name() {
                super::replay(stringify!($name), super::$name::input);
            })*
        }
    };
}

targets!(
    agent, attach, broker, config, disk, e1000, graph, fpm, messages, netmap, ptnet, requests, rings, router,
    rtl8169, tables, tunnel, vfio, wire
);
