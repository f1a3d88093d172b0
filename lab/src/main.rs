//! `sidecore-lab`: the lab for people and Makefiles.

use sidecore_lab::{
    bench::away, bench::beside, bench::figure4, bench::ptnet, demo, fetch, frr, tidy, Accel, Error, Lab,
    Result,
};
use std::process::ExitCode;

const USAGE: &str =
    "usage: sidecore-lab demo                 four VMs and the host exchange traffic (as root)
       sidecore-lab demo router          two VMs, two neighbours and a router whose FRR is killed (as root)
       sidecore-lab demo group           two VMs and a router that act as one router between two neighbours (as root)
       sidecore-lab demo hosts           a VM on each of three hosts with one switch; one moves to another host (as root)
       sidecore-lab bench-e1000 [ROUNDS [OPTION…]]
                                         our Intel cards beside QEMU's own, in guests; 5 rounds without a number;
                                         options are those of our ports, such as moderation=100,
                                         and spin=MICROSECONDS of the daemon
       sidecore-lab bench-figure4 [ROUNDS [spin=MICROSECONDS] [svg=FILE]] [--json]
                                         the rows of the paper's Figure 4, in guests (as root)
       sidecore-lab bench-ptnet [ROUNDS] [--json] [--seconds S] [--sizes BYTES,…] [--only NAME,…] [svg=FILE]
                                         ptnet beside our other cards and QEMU's virtio-net, in guests; names are those of
                                         cards (vhost-user, ptnet, e1000e, rtl8169, qemu-virtio) and tests (rr, udp, tcp)
       sidecore-lab bench-away [SECONDS,…] [--json]
                                         guests with a card of each kind while the daemon is away, killed or unable to start
       sidecore-lab fetch                download what guests need, if it is not there
       sidecore-lab fetch frr            download Debian 13's FRR, if it is not there, and print where it is
       sidecore-lab prepare              download what the demo needs, and find out how guests run here
       sidecore-lab accel                print how guests run here: kvm or tcg
       sidecore-lab shell [QEMU ARGS]    boot a guest with its console here; ctrl-a x ends it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.split_first() {
        Some((word, _)) if *word == "demo" || word.starts_with("bench-") => {
            tidy::Tidy::start().and_then(|_tidy| with_guests(&words))
        }
        Some((&"fetch", [])) => fetched(),
        Some((&"fetch", ["frr"])) => frr::debian_13().map(|folder| println!("{}", folder.display())),
        Some((&"prepare", [])) => demo::prepare(),
        Some((&"accel", [])) => Accel::decide().map(|accel| println!("{accel}")),
        Some((&"shell", rest)) => shell(rest),
        // Not for people: the program starts itself so.
        Some((&"tidy", [pid])) => tidy::after(pid),
        _ => Err(Error::new(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("sidecore-lab: {e}");
            ExitCode::FAILURE
        }
    }
}

/// What makes namespaces and folders.
fn with_guests(words: &[&str]) -> Result<()> {
    match words.split_first() {
        Some((&"demo", [])) => demo::demo(),
        Some((&"demo", ["router"])) => demo::router::demo(),
        Some((&"demo", ["group"])) => demo::group::demo(),
        Some((&"demo", ["hosts"])) => demo::hosts::demo(),
        Some((&"bench-e1000", [])) => beside::e1000(5, &[]),
        Some((&"bench-e1000", [rounds, options @ ..])) => match rounds.parse() {
            Ok(rounds @ 1..) => beside::e1000(rounds, options),
            _ => Err(Error::new(USAGE)),
        },
        Some((&"bench-figure4", rest)) => bench_figure4(rest),
        Some((&"bench-away", words)) => away::away(words),
        Some((&"bench-ptnet", words)) => ptnet::ptnet(words),
        _ => Err(Error::new(USAGE)),
    }
}

fn bench_figure4(words: &[&str]) -> Result<()> {
    let (json, words): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| **word == "--json");
    let (rounds, options) = words.split_first().unwrap_or((&"5", &[]));
    match rounds.parse() {
        Ok(rounds @ 1..) => figure4::figure4(rounds, options, !json.is_empty()),
        _ => Err(Error::new(USAGE)),
    }
}

fn fetched() -> Result<()> {
    let lab = Lab::open()?;
    let (major, minor) = lab.qemu_version();
    println!("{}: QEMU {major}.{minor}, guest kernel {}", lab.dir.display(), lab.kernel_version);
    Ok(())
}

fn shell(arguments: &[&str]) -> Result<()> {
    let status = fetch::shell(arguments)?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(format!("QEMU ended with {status}")))
}
