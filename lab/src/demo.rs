//! `sidecore-lab demo`: four VMs and the host exchange traffic, and a table says how it went.
//!
//! A person who sees the project for the first time runs this, so it does what that person would do by hand:
//! it starts the daemon as the README says, boots four unmodified guests, two with virtio and two with Intel
//! cards, gives each an address, pings, runs iperf3 and prints `sidecore show`. The two with Intel cards have
//! a ptnet card, too, for which our driver is loaded: so the same guests show both, and no more guests have
//! to boot. The host's part is a TAP interface in a network namespace of its own: the addresses and routes of
//! this machine are not touched. All processes end and the namespace goes before the last line is printed,
//! whatever happened.
//!
//! [`router`] is another demo, a router with FRR, [`group`] one more: three routers that act as one, and
//! [`hosts`] a switch over three hosts.
//!
//! [`prepare`] does what takes long and needs no daemon: downloads, the driver for the guests' kernel, and
//! the decision between KVM and TCG.

pub mod group;
pub mod hosts;
pub mod router;

use crate::disk::BOOT_BYTES;
use crate::error::{Context, Error, Result};
use crate::frr::Frr;
use crate::traffic::{iperf3, received_gbits, Ping};
use crate::{kbuild, Accel, Daemon, Guest, Lab, Netns, Nic, Output, RunDir};
use std::io::Write;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long iperf3 sends, in seconds.
const SECONDS: u32 = 1;
/// How long a card may take to appear.
const LIMIT: Duration = Duration::from_secs(60);
/// The host's interface and all addresses; they exist in the namespace and in the guests only.
const TAP: &str = "sc0";
const HOST: &str = "10.77.0.1";
/// The guests: name, card, address.
const GUESTS: [(&str, &str, &str); 4] = [
    ("a", "vhost-user", "10.77.0.2"),
    ("b", "vhost-user", "10.77.0.3"),
    ("c", "e1000e", "10.77.0.4"),
    ("d", "e1000", "10.77.0.5"),
];
/// The one that boots from a disk.
const BOOTS: &str = "a";
/// The ptnet cards: guest, port, address.
const PTNET: [(&str, &str, &str); 2] = [("c", "c-ptnet", "10.77.1.4"), ("d", "d-ptnet", "10.77.1.5")];
/// The sender, the receiver, and their cards.
const PAIRS: [(&str, &str, &str); 7] = [
    ("a", "b", "virtio-net"),
    ("c", "d", "e1000e → e1000"),
    ("c", "d", "ptnet"),
    ("a", "c", "virtio-net → e1000e"),
    ("c", "a", "e1000e → virtio-net"),
    ("host", "a", "TAP → virtio-net"),
    ("host", "c", "TAP → e1000e"),
];

/// Runs the demo; returns when all of it worked and nothing is left of it.
///
/// # Errors
/// A step failed: which one, and where the logs are.
pub fn demo() -> Result<()> {
    let about = "Four unmodified Linux VMs and this host, joined by one sidecore switch.";
    perform("demo", about, run)
}

fn run(dir: &RunDir) -> Result<()> {
    let host = step("host", "making a network namespace", || Netns::new("demo"))?;
    let socket = |name: &str| dir.join(&format!("{name}.sock"));
    let image = dir.path().join("root.img");
    step("disk", "making a disk for a", || {
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(BOOT_BYTES))
            .context(|| format!("making {}", image.display()))
    })?;
    let ports: Vec<String> = GUESTS
        .iter()
        .map(|(name, card, _)| format!("{name}={card}:{}", socket(name)))
        .chain(PTNET.map(|(_, port, _)| format!("{port}=ptnet:{}", socket(port))))
        .chain([format!("host=tap:{TAP}"), format!("root=blk:{},file={}", socket("root"), image.display())])
        .collect();
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    let daemon = step("daemon", "starting", || Daemon::start_in(&host, &arguments))?;
    say("daemon", &format!("sidecore run {}", arguments.join(" ")));
    say("", "a and b have virtio cards, c an Intel 82574L and d an 82540EM, with Linux's own drivers;");
    say("", "c and d have a ptnet card, too, with our driver (guest/linux/ptnet)");
    say("", "a boots from a disk of the daemon's, as its firmware finds it");
    let module = step("ptnet", "building the guests' driver", || kbuild::kept("ptnet"))?;
    let spec = |name: &str, card: &str| {
        let mut spec = Guest::named(name).nic(Nic::of_port(card, socket(name)));
        for (_, port, _) in PTNET.iter().filter(|(guest, ..)| *guest == name) {
            let memory = format!("{}.mem", socket(port));
            spec = spec.nic(Nic::vfio_user(socket(port))).nic(Nic::vfio_user(memory));
            spec = spec.file("/ptnet.ko", 0o644, module.clone());
        }
        match name {
            BOOTS => spec.disk(socket("root")).boot_from_disk(&image),
            _ => spec,
        }
    };
    let guests = boot(GUESTS.map(|(name, card, _)| spec(name, card)).into())?;
    let mut site = Site { host, daemon, guests };
    let done = site.traffic().and_then(|rows| site.report(&rows));
    end(done, site.daemon, site.guests)
}

/// Runs a demo, `sidecore-lab WORDS`, in a folder of its own, and says what it is `about` and how long it
/// took. All but the first have routing daemons.
fn perform(words: &str, about: &str, run: impl FnOnce(&RunDir) -> Result<()>) -> Result<()> {
    root_only(words)?;
    let begin = Instant::now();
    println!("{about}\n");
    if words != "demo" && !Frr::is_there() {
        return Err(Error::new("this demo needs FRR: apt-get install frr"));
    }
    lab()?;
    let dir = RunDir::new(&words.replace(' ', "-"))?;
    run(&dir)?;
    drop(dir);
    println!("\nAll of it worked, in {:.0} s; nothing is left running.", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Ends guests and daemon. If the demo is not `done`, their logs are kept, and the error says where.
fn end(done: Result<()>, mut daemon: Daemon, mut guests: Vec<Guest>) -> Result<()> {
    done.map_err(|e| {
        let logs = guests.iter_mut().map(Guest::keep_logs).chain([daemon.keep_logs()]);
        Error::new(format!("{e}\nlogs: {}", logs.collect::<Vec<_>>().join("\n      ")))
    })?;
    guests.into_iter().for_each(Guest::kill);
    step("end", "ending the daemon", || daemon.terminate()).map(drop)
}

/// Bits of the networks between a router and its neighbours.
const BITS: u8 = 25;

/// A neighbour of a router: a namespace behind the interface of `host` with the neighbour's name, with an
/// address there and one, `far`, that only routing tells of.
fn neighbour(host: &Netns, name: &str, address: &str, far: &str) -> Result<Netns> {
    let netns = Netns::new(name)?;
    host.veth(name, &netns, "eth0")?;
    netns.address("eth0", &format!("{address}/{BITS}"))?;
    netns.address("lo", &format!("{far}/32"))?;
    Ok(netns)
}

/// Waits until `address` answers to `source`, an address of a neighbour's.
fn reach(neighbour: &Netns, source: &str, address: &str) -> Result<()> {
    let ping = format!("ping -c 1 -W 1 -I {source} {address} > /dev/null");
    neighbour.expect(&format!("for i in $(seq 60); do {ping} && exit; done; exit 1")).map(drop)
}

/// Ping, and TCP in Gbit/s as the receiver counts. `run` runs the sender's commands.
fn measure(
    receiver: &mut Guest,
    address: &str,
    mut run: impl FnMut(&str) -> Result<Output>,
) -> Result<(Ping, f64)> {
    let text = run(&format!("ping -c 5 -i 0.2 -W 10 {address}"))?.text;
    let ping = Ping::parse(&text).filter(|ping| ping.received == 5).ok_or_else(|| Error::new(text))?;
    let report = iperf3(receiver, address, &format!("--time {SECONDS}"), run)?;
    Ok((ping, received_gbits(&report)))
}

/// Downloads what the demo needs, and finds out how guests run here. `make demo` does that beside the build.
///
/// # Errors
/// Something cannot be downloaded, or the lab's folder cannot be written.
pub fn prepare() -> Result<()> {
    crate::fetch::sharing_lists(|| {
        let lab = Lab::open()?;
        crate::disk::grub(lab)?;
        kbuild::kept("ptnet")
    })?;
    Accel::decide().map(drop)
}

/// Namespaces and TAP interfaces take root.
fn root_only(words: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let program = std::env::current_exe().map_or_else(|_| "sidecore-lab".into(), |p| p.display().to_string());
    Err(Error::new(format!(
        "the demo makes a network namespace and a TAP interface, which only root may do; run\n    sudo {program} {words}"
    )))
}

/// Looks for what guests need, and says how they run.
fn lab() -> Result<()> {
    let lab = step("lab", "looking for QEMU, a kernel and the guests' programs", Lab::open)?;
    let accel = step("lab", "looking how guests run here", Accel::decide)?;
    let (major, minor) = lab.qemu_version();
    say("lab", &format!("QEMU {major}.{minor}, guests with Linux {}", lab.kernel_version));
    match accel {
        Accel::Kvm => say("", "run by KVM"),
        Accel::Tcg => say(
            "",
            "emulated (TCG), because hardware virtualization is missing: many times slower than real VMs",
        ),
    }
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

/// Boots all guests at once; a dot is printed for every second.
fn boot(specs: Vec<crate::Spec>) -> Result<Vec<Guest>> {
    let (begin, wanted) = (Instant::now(), specs.len());
    print!("  {:8} booting all ", "guests");
    let (sender, booted) = channel();
    for (index, spec) in specs.into_iter().enumerate() {
        let sender = sender.clone();
        std::thread::spawn(move || drop(sender.send((index, spec.boot()))));
    }
    drop(sender);
    let mut guests = Vec::new();
    while guests.len() < wanted {
        let _ = std::io::stdout().flush();
        match booted.recv_timeout(Duration::from_secs(1)) {
            Ok((index, guest)) => guests.push((index, step("guests", "booting", || guest)?)),
            Err(RecvTimeoutError::Timeout) => print!("."),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new("this step failed: guests, booting: a thread ended without a guest"))
            }
        }
    }
    println!(" {:.0} s", begin.elapsed().as_secs_f64());
    guests.sort_by_key(|(index, _)| *index);
    Ok(guests.into_iter().map(|(_, guest)| guest).collect())
}

/// What the demo measured between two of the three.
struct Row {
    pair: String,
    cards: &'static str,
    ping: Ping,
    gbits: f64,
}

struct Site {
    host: Netns,
    daemon: Daemon,
    /// As in `GUESTS`.
    guests: Vec<Guest>,
}

impl Site {
    fn traffic(&mut self) -> Result<Vec<Row>> {
        step("host", "giving the TAP interface an address", || {
            self.host.address(TAP, &format!("{HOST}/24"))
        })?;
        for ((name, _, address), guest) in GUESTS.iter().zip(&mut self.guests) {
            step(name, "giving eth0 an address", || guest.address(&format!("{address}/24")))?;
        }
        for (name, _, address) in PTNET {
            step(name, "loading our ptnet driver", || self.ptnet(name, address))?;
        }
        let mut rows = Vec::new();
        for (from, to, cards) in PAIRS {
            let pair = format!("{from} → {to}");
            say(from, &format!("pings {to}, then sends to it with iperf3 for {SECONDS} s ({cards})"));
            let (ping, gbits) = step(&pair, "ping and iperf3", || self.measure(from, to, cards))?;
            rows.push(Row { pair, cards, ping, gbits });
        }
        Ok(rows)
    }

    /// Loads our driver into a guest and gives its card an address.
    fn ptnet(&mut self, name: &str, address: &str) -> Result<()> {
        let guest = self.guests.iter_mut().find(|guest| guest.name() == name);
        let guest = guest.ok_or_else(|| Error::new(format!("no guest {name}")))?;
        guest.expect("insmod /ptnet.ko")?;
        guest.wait_until("test -e /sys/class/net/eth1", LIMIT)?;
        // Both cards are on one switch, and each is to answer for its own address only.
        guest.expect("echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore")?;
        guest.expect(&format!("ip addr add {address}/24 dev eth1; ip link set eth1 up")).map(drop)
    }

    /// Ping, and TCP in Gbit/s as the receiver counts.
    fn measure(&mut self, from: &str, to: &str, cards: &str) -> Result<(Ping, f64)> {
        let index = |who: &str| GUESTS.iter().position(|(name, ..)| *name == who);
        let receiver = index(to).ok_or_else(|| Error::new(format!("no guest {to}")))?;
        let ptnet = PTNET.iter().find(|(guest, ..)| cards == "ptnet" && *guest == to);
        let address = ptnet.map_or(GUESTS[receiver].2, |(.., address)| *address);
        let Site { host, guests, .. } = self;
        // The receiver on one side, all others on the other.
        let (before, rest) = guests.split_at_mut(receiver);
        let Some((receiver, after)) = rest.split_first_mut() else {
            return Err(Error::new(format!("no guest {to}")));
        };
        let mut others: Vec<&mut Guest> = before.iter_mut().chain(after).collect();
        let sender = others.iter_mut().position(|guest| guest.name() == from);
        let mut run = |command: &str| match sender {
            Some(sender) => others[sender].run(command),
            None => host.run(command),
        };
        // The first one waits until the cards' links are up.
        run(&format!("ping -c 1 -W 10 {address}"))?;
        measure(receiver, address, run)
    }

    fn report(&mut self, rows: &[Row]) -> Result<()> {
        println!("\n  {:12} {:20} {:>12} {:>12} {:>16}", "", "cards", "ping min", "ping avg", "iperf3 TCP");
        for Row { pair, cards, ping, gbits } in rows {
            let Ping { min_ms, avg_ms, .. } = ping;
            println!("  {pair:12} {cards:20} {min_ms:>9.2} ms {avg_ms:>9.2} ms {gbits:>9.2} Gbit/s");
        }
        let balance = step("daemon", "counting frames", || self.daemon.balance())?;
        for topic in ["ports", "queues", "disks", "drops"] {
            let text = step("daemon", "show", || self.daemon.command(&["show", topic]))?;
            println!("\n$ sidecore show {topic}\n{}", text.trim_end());
        }
        println!("\n{balance}");
        Ok(())
    }
}
