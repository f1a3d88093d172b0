//! The C headers and library: layouts compared with `sidecore_abi`, and netmap programs of our own that are
//! built with `-Wall -Wextra -Werror` and run. Needs a C compiler and make.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::rig::{frame, Directory, Engine};
use sidecore_abi::netmap::{If, RingHead, Slot};
use sidecore_abi::ring::{Client, RingStatus};
use sidecore_engine::port::DropReason;

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}: is it installed?"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Where the library is, built as a user would; once for all tests.
fn library_directory() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libnetmap");
        std::fs::create_dir_all(&out).unwrap();
        run(Command::new("make").arg("-s").arg("-C").arg(source("c")).arg(format!("OUT={}", out.display())));
        out
    })
}

/// One of the programs, built with the library as a user would.
fn build(directory: &Directory, program: &str, library: &str) -> PathBuf {
    let out = library_directory();
    let target = directory.0.join(program);
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
        .arg(format!("-I{}", source("../../include").display()))
        .arg(source("tests/c").join(program).with_extension("c"))
        .arg("-o")
        .arg(&target)
        .arg(format!("-L{}", out.display()))
        .arg(format!("-Wl,-rpath,{}", out.display()))
        .args([library, "-lpthread"]));
    target
}

/// Has the program find the engine's ports by plain names, which may have suffixes.
fn by_name<'c>(command: &'c mut Command, engine: &Engine) -> &'c mut Command {
    let directory = &engine.directory.0;
    std::os::unix::fs::symlink(".", directory.join("ring")).unwrap();
    command.env("SIDECORE_SOCKET", directory.join("control.sock"))
}

#[test]
fn c_and_rust_mean_the_same_bytes() {
    let directory = Directory::new();
    let program = build(&directory, "layout", "-l:libnetmap.a");
    let text = String::from_utf8(run(&mut Command::new(program)).stdout).unwrap();
    let printed: BTreeMap<&str, usize> =
        text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(k, v)| (k, v.parse().unwrap())).collect();
    let engine = offset_of!(RingStatus, engine);
    let mut expected = BTreeMap::from([
        ("netmap_slot", size_of::<Slot>()),
        ("netmap_slot.buf_idx", offset_of!(Slot, buf_idx)),
        ("netmap_slot.len", offset_of!(Slot, len)),
        ("netmap_slot.flags", offset_of!(Slot, flags)),
        ("netmap_slot.ptr", offset_of!(Slot, ptr)),
        ("netmap_ring", size_of::<RingHead>()),
        ("netmap_ring.buf_ofs", offset_of!(RingHead, buf_ofs)),
        ("netmap_ring.num_slots", offset_of!(RingHead, num_slots)),
        ("netmap_ring.nr_buf_size", offset_of!(RingHead, nr_buf_size)),
        ("netmap_ring.ringid", offset_of!(RingHead, ringid)),
        ("netmap_ring.dir", offset_of!(RingHead, dir)),
        ("netmap_ring.head", offset_of!(RingHead, head)),
        ("netmap_ring.cur", offset_of!(RingHead, cur)),
        ("netmap_ring.tail", offset_of!(RingHead, tail)),
        ("netmap_ring.flags", offset_of!(RingHead, flags)),
        ("netmap_ring.ts", offset_of!(RingHead, ts)),
        ("netmap_ring.offset_mask", offset_of!(RingHead, offset_mask)),
        ("netmap_ring.buf_align", offset_of!(RingHead, buf_align)),
        ("netmap_ring.sem", offset_of!(RingHead, sem)),
        ("netmap_ring.slot", size_of::<RingHead>()),
        ("netmap_if", size_of::<If>()),
        ("netmap_if.ni_version", offset_of!(If, ni_version)),
        ("netmap_if.ni_flags", offset_of!(If, ni_flags)),
        ("netmap_if.ni_tx_rings", offset_of!(If, ni_tx_rings)),
        ("netmap_if.ni_rx_rings", offset_of!(If, ni_rx_rings)),
        ("netmap_if.ni_bufs_head", offset_of!(If, ni_bufs_head)),
        ("netmap_if.ni_host_tx_rings", offset_of!(If, ni_host_tx_rings)),
        ("netmap_if.ni_host_rx_rings", offset_of!(If, ni_host_rx_rings)),
        ("netmap_if.ring_ofs", size_of::<If>()),
        ("ring_words", size_of::<RingStatus>()),
        ("ring_words.client.head", offset_of!(Client, head)),
        ("ring_words.client.cur", offset_of!(Client, cur)),
        ("ring_words.client.ticket", offset_of!(Client, ticket)),
        ("ring_words.engine.hwcur", engine + offset_of!(sidecore_abi::ring::Engine, hwcur)),
        ("ring_words.engine.hwtail", engine + offset_of!(sidecore_abi::ring::Engine, hwtail)),
        ("ring_words.engine.ticket", engine + offset_of!(sidecore_abi::ring::Engine, ticket)),
        ("ring_words.engine.resets", engine + offset_of!(sidecore_abi::ring::Engine, resets)),
        ("ring_words.engine.reason", engine + offset_of!(sidecore_abi::ring::Engine, reason)),
    ]);
    // The control structures are not the engine's: sizes, offsets and numbers as the published headers have
    // them.
    expected.extend([
        ("nmreq_header", 88),
        ("nmreq_option", 24),
        ("nmreq_register", 56),
        ("nmreq_register.nr_flags", 48),
        ("nmreq_port_info_get", 32),
        ("nmreq_port_hdr", 8),
        ("nmreq", 60),
        ("nmreq_vale_attach", 64),
        ("nmreq_vale_detach", 8),
        ("nmreq_vale_list", 8),
        ("nmreq_vale_newif", 16),
        ("nmreq_vale_polling", 16),
        ("nmreq_pools_info", 64),
        ("nmreq_pools_info.nr_ring_pool_offset", 32),
        ("nmreq_pools_info.nr_buf_pool_objsize", 60),
        ("nmreq_sync_kloop_start", 8),
        ("nmreq_opt_extmem", 96),
        ("nmreq_opt_csb", 40),
        ("nmreq_opt_sync_kloop_eventfds", 24),
        ("nmreq_opt_sync_kloop_mode", 32),
        ("nmreq_opt_offsets", 56),
        ("nm_csb_atok", 64),
        ("nm_csb_ktoa", 64),
        ("nm_ifreq", 272),
        ("nmem_d", 48),
        ("nmctx", 48),
        ("vale_ask", sidecore_abi::vale::ASK),
        ("vale_reply", sidecore_abi::vale::REPLY),
        ("nm_desc", 760),
        ("nm_desc.nifp", 40),
        ("nm_desc.req", 60),
        ("nm_desc.hdr", 120),
        ("nm_desc.some_ring", 176),
        ("nm_desc.msg", 248),
        ("nm_pkthdr", 56),
        ("nmport_d", 216),
        ("nmport_d.fd", 176),
        ("nmport_d.nifp", 184),
        ("nmport_d.first_tx_ring", 192),
        ("NIOCTXSYNC", 0x6994),
        ("NIOCRXSYNC", 0x6995),
        ("NIOCCTRL", 0xc058_6997),
        ("NIOCGINFO", 0xc03c_6991),
        ("NIOCCONFIG", 0xc110_6996),
        ("NIOCREGIF", 0xc03c_6992),
    ]);
    assert_eq!(printed, expected);
}

fn exchange(library: &str, frames: u64) {
    let directory = Directory::new();
    let (sender, receiver) = (build(&directory, "sender", library), build(&directory, "receiver", library));
    // A ring that holds all frames: a sender of netmap's is never held up, so what does not fit is lost.
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.slots = 4096);
    let name = |i: usize| format!("netmap:{}", engine.name(i));
    let mut receiver =
        Command::new(receiver).args([name(1), frames.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(receiver.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let sent = run(Command::new(sender).args([name(0), frames.to_string()]));
    assert_eq!(String::from_utf8_lossy(&sent.stdout), format!("sent {frames}\n"));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(receiver.wait().unwrap().success());
    assert_eq!(rest, format!("received {frames}\n"));
    assert_eq!(engine.ports[1].counters.totals().drops[DropReason::RingFull as usize], 0);
}

#[test]
fn netmap_programs_exchange_frames_with_the_static_library() {
    exchange("-l:libnetmap.a", 4000);
}

#[test]
fn netmap_programs_exchange_frames_with_the_shared_library() {
    exchange("-lnetmap", 4000);
}

#[test]
fn indices_move_as_netmap_moves_them() {
    let directory = Directory::new();
    let program = build(&directory, "rules", "-l:libnetmap.a");
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| {
        config.geometry.slots = 8;
        config.geometry.extra_bufs = 2;
    });
    let name = |i: usize| format!("netmap:{}", engine.name(i));
    run(Command::new(program).args([name(0), name(1)]));
}

#[test]
fn a_program_that_was_built_without_us_runs_with_the_library_loaded_before_it() {
    let directory = Directory::new();
    let program = build(&directory, "raw", "-lc");
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.rings = 2);
    let shim = library_directory().join("libsidecore-netmap.so");
    run(Command::new(&program).env("LD_PRELOAD", &shim).args([engine.name(0), engine.name(1)]));
    // This program, linked with us.
    run(Command::new(build(&directory, "raw", "-l:libnetmap.a")).args([engine.name(0), engine.name(1)]));
}

#[test]
fn names_and_requests_are_read_as_netmap_reads_them() {
    let directory = Directory::new();
    run(&mut Command::new(build(&directory, "names", "-l:libnetmap.a")));
}

#[test]
fn pipes_pass_slots_and_no_bytes() {
    let directory = Directory::new();
    let program = build(&directory, "pipes", "-l:libnetmap.a");
    let engine = Engine::new(1, Vec::new(), Duration::from_micros(20), |config| {
        config.geometry.slots = 8;
        config.geometry.extra_bufs = 1;
        config.geometry.pipes = 2;
    });
    run(Command::new(program).arg(format!("netmap:{}", engine.name(0))));
}

#[test]
fn older_calls_several_rings_and_single_steps() {
    let directory = Directory::new();
    let program = build(&directory, "calls", "-l:libnetmap.a");
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| {
        config.geometry.rings = 2;
        config.geometry.slots = 8;
    });
    run(by_name(Command::new(program).args(["netmap:p0", "netmap:p1"]), &engine));
}

#[test]
fn monitors_see_what_passes_their_port() {
    let directory = Directory::new();
    let program = build(&directory, "monitors", "-l:libnetmap.a");
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.slots = 8);
    run(by_name(Command::new(program).args(["netmap:p0", "netmap:p1"]), &engine));
}

#[test]
fn monitors_see_what_is_released_and_what_passes_in_pipes() {
    let directory = Directory::new();
    let program = build(&directory, "released", "-l:libnetmap.a");
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.slots = 8);
    run(by_name(Command::new(program).args(["netmap:p0", "netmap:p1"]), &engine));
}

#[test]
fn a_descriptor_is_the_port_in_whatever_process_it_is() {
    let directory = Directory::new();
    let program = build(&directory, "passed", "-l:libnetmap.a");
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.slots = 8);
    run(by_name(Command::new(program).args(["netmap:p0", "netmap:p1"]), &engine));
}

#[test]
fn host_rings_lead_to_the_port_across() {
    let directory = Directory::new();
    let program = build(&directory, "host", "-l:libnetmap.a");
    let mut engine =
        Engine::new(3, Vec::new(), Duration::from_micros(20), |config| config.geometry.slots = 8);
    engine.add_host_rings(0, 2, 1);
    run(by_name(Command::new(program).args(["netmap:p0", "netmap:p1", "netmap:p2"]), &engine));
}

#[test]
fn ports_that_share_a_memory_exchange_buffers() {
    let directory = Directory::new();
    let program = build(&directory, "shared", "-l:libnetmap.a");
    let engine = Engine::new(3, Vec::new(), Duration::from_micros(20), |config| {
        config.geometry.slots = 8;
        config.memory = Some("c-api".to_owned()).filter(|_| !config.path.ends_with("p2"));
    });
    run(by_name(Command::new(program).args(["netmap:p0", "netmap:p1", "netmap:p2"]), &engine));
}

#[test]
fn a_csb_takes_the_place_of_syncs() {
    let directory = Directory::new();
    let program = build(&directory, "csb", "-l:libnetmap.a");
    let engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| config.geometry.slots = 8);
    run(by_name(Command::new(program).args(["netmap:p0", "netmap:p1"]), &engine));
}

#[test]
fn a_netmap_program_is_told_that_the_daemon_is_gone() {
    let directory = Directory::new();
    let receiver = build(&directory, "receiver", "-l:libnetmap.a");
    let mut engine = Engine::sleepy(1);
    let mut receiver = Command::new(receiver)
        .args([format!("netmap:{}", engine.name(0)), "1".to_owned()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(receiver.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    engine.attachments.clear();
    let output = receiver.wait_with_output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // POLLERR and POLLHUP.
    assert!(said.contains("revents 0x18"), "{said}");
}

#[test]
fn a_netmap_program_whose_memory_goes_with_its_port_gets_no_packets_of_zeros() {
    let directory = Directory::new();
    let program = build(&directory, "gone", "-l:libnetmap.a");
    let me = rustix::process::geteuid().as_raw();
    let mut engine = Engine::new(2, Vec::new(), Duration::from_micros(20), |config| {
        config.owner = (Some(me), None);
    });
    let mut program = Command::new(program)
        .args([format!("netmap:{}", engine.name(1)), "5".to_owned()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "ready\n");
    let mut sender = engine.attach(0);
    for number in 0..5 {
        assert!(sender.tx[0].push(&frame(2, 1, number, 60)));
    }
    sender.tx[0].sync().unwrap();
    assert_eq!(line(), "got 5\n");
    drop(engine.attachments.remove(1));
    assert_eq!(line(), "gone\n");
    assert!(program.wait().unwrap().success());
}
