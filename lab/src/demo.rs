//! `sidecore-lab demo`: two VMs and the host exchange traffic, and a table says how it went.
//!
//! A person who sees the project for the first time runs this, so it does what that person would do by hand: starts
//! the daemon as the README says, boots two unmodified guests, gives everybody an address, pings, runs iperf3 and
//! looks at `sidecore show`. The host's part is a TAP interface in a network namespace of its own: the addresses
//! and routes of this machine are not touched. All processes end and the namespace goes before the last line is
//! printed, whatever happened.

use crate::error::{Error, Result};
use crate::traffic::{iperf3, received_gbits, Ping};
use crate::{Accel, Daemon, Guest, Lab, Netns, Nic, Output, Role, RunDir};
use std::io::Write;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long iperf3 sends, in seconds.
const SECONDS: u32 = 2;
/// The host's interface and everybody's addresses; they exist in the namespace and in the guests only.
const TAP: &str = "sc0";
const HOST: &str = "10.77.0.1";
const A: &str = "10.77.0.2";
const B: &str = "10.77.0.3";

/// Runs the demo; returns when all of it worked and nothing is left of it.
///
/// # Errors
/// A step failed: which one, and where the logs are.
pub fn demo() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let program =
            std::env::current_exe().map_or_else(|_| "sidecore-lab".into(), |p| p.display().to_string());
        return Err(Error::new(format!(
            "the demo makes a network namespace and a TAP interface, which only root may do; run\n    sudo {program} demo"
        )));
    }
    let begin = Instant::now();
    println!("Two unmodified Linux VMs and this host, joined by one sidecore switch.\n");
    let lab = step("lab", "looking for QEMU, a kernel and the guests' programs", Lab::open)?;
    let accel = step("lab", "looking how guests run here", Accel::decide)?;
    let (major, minor) = lab.qemu_version();
    say("lab", &format!("QEMU {major}.{minor}, guests with Linux {}", lab.kernel_version));
    match accel {
        Accel::Kvm => say("", "run by KVM"),
        Accel::Tcg => {
            say("", "emulated (TCG), for want of hardware virtualization: many times slower than real VMs")
        }
    }
    let host = step("host", "making a network namespace", || Netns::new("demo"))?;
    let dir = RunDir::new("demo")?;
    let socket = |name: &str| dir.join(&format!("{name}.sock"));
    let ports = [
        format!("a=vhost-user:{}", socket("a")),
        format!("b=vhost-user:{}", socket("b")),
        format!("host=tap:{TAP}"),
    ];
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    let daemon = step("daemon", "starting", || Daemon::start_in(&host, &arguments))?;
    say("daemon", &format!("sidecore run {}", arguments.join(" ")));
    let nic = |name: &str| Nic::vhost_user(socket(name), Role::QemuClient { reconnect_ms: 200 }, 1);
    let [a, b] = boot(["a", "b"].map(|name| Guest::named(name).nic(nic(name))))?;
    let mut site = Site { host, daemon, a, b };
    let done = site.traffic().and_then(|rows| site.report(&rows));
    done.map_err(|e| Error::new(format!("{e}\n{}", site.keep_logs())))?;
    let Site { host, daemon, a, b } = site;
    a.kill();
    b.kill();
    step("end", "ending the daemon", || daemon.terminate())?;
    drop((host, dir));
    println!("\nAll of it worked, in {:.0} s; nothing is left running.", begin.elapsed().as_secs_f64());
    Ok(())
}

/// A line about what is done; `who` stands in a column of its own.
fn say(who: &str, what: &str) {
    println!("  {who:8} {what}");
}

/// Does a step of the demo whose failure is reported with its name.
fn step<T>(who: &str, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    work().map_err(|e| Error::new(format!("this step failed: {who}, {what}\n{e}")))
}

/// Boots both guests at once; a dot is printed for every second.
fn boot(specs: [crate::Spec; 2]) -> Result<[Guest; 2]> {
    let begin = Instant::now();
    print!("  {:8} booting both ", "a, b");
    let (sender, booted) = channel();
    for (index, spec) in specs.into_iter().enumerate() {
        let sender = sender.clone();
        std::thread::spawn(move || drop(sender.send((index, spec.boot()))));
    }
    drop(sender);
    let mut guests = [None, None];
    loop {
        let _ = std::io::stdout().flush();
        match booted.recv_timeout(Duration::from_secs(1)) {
            Ok((index, guest)) => guests[index] = Some(step("guests", "booting", || guest)?),
            Err(RecvTimeoutError::Timeout) => print!("."),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    println!(" {:.0} s", begin.elapsed().as_secs_f64());
    match guests {
        [Some(a), Some(b)] => Ok([a, b]),
        _ => Err(Error::new("this step failed: guests, booting: a thread ended without a guest")),
    }
}

/// What the demo measured between two of the three.
struct Row {
    pair: String,
    ping: Ping,
    gbits: f64,
}

struct Site {
    host: Netns,
    daemon: Daemon,
    a: Guest,
    b: Guest,
}

impl Site {
    fn traffic(&mut self) -> Result<Vec<Row>> {
        step("host", "giving the TAP interface an address", || {
            self.host.address(TAP, &format!("{HOST}/24"))
        })?;
        for (name, guest, address) in [("a", &mut self.a, A), ("b", &mut self.b, B)] {
            step(name, "giving eth0 an address", || guest.address(&format!("{address}/24")))?;
        }
        let mut rows = Vec::new();
        for (from, to, address) in [("a", "b", B), ("host", "a", A), ("host", "b", B)] {
            let pair = format!("{from} → {to}");
            say(from, &format!("pings {to}, then sends to it with iperf3 for {SECONDS} s"));
            let ping = step(&pair, "ping", || {
                let text = self.run(from, &format!("ping -c 5 -i 0.2 -W 10 {address}"))?.text;
                Ping::parse(&text).filter(|ping| ping.received == 5).ok_or_else(|| Error::new(text))
            })?;
            let gbits = step(&pair, "iperf3", || self.iperf3(from, to, address))?;
            rows.push(Row { pair, ping, gbits });
        }
        Ok(rows)
    }

    /// Runs a command where `who` is.
    fn run(&mut self, who: &str, command: &str) -> Result<Output> {
        match who {
            "a" => self.a.run(command),
            "b" => self.b.run(command),
            _ => self.host.run(command),
        }
    }

    /// TCP to a guest, in Gbit/s as the receiver counts.
    fn iperf3(&mut self, from: &str, to: &str, address: &str) -> Result<f64> {
        let options = format!("--time {SECONDS}");
        let (server, client) =
            if to == "a" { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
        let report = iperf3(server, address, &options, |command| match from {
            "host" => self.host.run(command),
            _ => client.run(command),
        })?;
        Ok(received_gbits(&report))
    }

    fn report(&mut self, rows: &[Row]) -> Result<()> {
        println!("\n  {:12} {:>12} {:>12} {:>16}", "", "ping min", "ping avg", "iperf3 TCP");
        for Row { pair, ping, gbits } in rows {
            let Ping { min_ms, avg_ms, .. } = ping;
            println!("  {pair:12} {min_ms:>9.2} ms {avg_ms:>9.2} ms {gbits:>9.2} Gbit/s");
        }
        let balance = step("daemon", "counting frames", || self.daemon.balance())?;
        for topic in ["ports", "drops"] {
            let text = step("daemon", "show", || self.daemon.command(&["show", topic]))?;
            println!("\n$ sidecore show {topic}\n{}", text.trim_end());
        }
        println!("\n{balance}");
        Ok(())
    }

    /// Where the logs are that are kept after a failure.
    fn keep_logs(&mut self) -> String {
        let logs = [self.a.keep_logs(), self.b.keep_logs(), self.daemon.keep_logs()];
        format!("logs: {}", logs.join("\n      "))
    }
}
