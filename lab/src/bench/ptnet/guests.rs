//! The guests of `bench-ptnet`, and what is measured in them.

use super::super::{
    counter, feature, frames_of_a_second, io_core, netsend, number, Counts, Interface, FIRST, LIMIT, RECEIVED,
};
use super::{Card, Sample, Test, Way};
use crate::error::{Error, Result};
use crate::kbuild::{build, drivers, program, Kernel};
use crate::nic::slot;
use crate::traffic::{iperf3, received_gbits};
use crate::{Daemon, Guest, Nic, Role, RunDir};
use serde_json::Value;

/// Where `netecho` answers.
const PORT: u16 = 7;
const WHO: [&str; 2] = ["a", "b"];

pub(super) struct Bench {
    daemon: Daemon,
    guests: [Guest; 2],
    /// The slot of each card, and for ptnet that of the device itself.
    slots: Vec<String>,
    /// The sockets are in it.
    _dir: RunDir,
}

/// A card that is up in both guests.
pub(super) struct Session<'a> {
    bench: &'a mut Bench,
    place: usize,
    card: &'static Card,
    interfaces: [Interface; 2],
}

/// What has been counted so far, of the sender and of the receiver.
struct Seen {
    kicks: Option<[u64; 2]>,
    traps: Option<[u64; 2]>,
    interrupts: [u64; 2],
    /// Packets that the receiver's IP layer has got.
    received: u64,
}

impl Bench {
    pub(super) fn start(cards: &[&'static Card]) -> Result<Self> {
        let module = build(&drivers()?.join("ptnet"), "ptnet", Kernel::Guest)?;
        let (netsend, netecho) = (program("netsend")?, program("netecho")?);
        let dir = RunDir::new("bench-ptnet")?;
        let core = io_core();
        let mut arguments = ["--cores", &core].map(str::to_owned).to_vec();
        for card in cards.iter().filter(|card| card.way != Way::Qemu) {
            for who in WHO {
                let name = port(who, card);
                let kind = card.name;
                arguments.extend(["--port".to_owned(), format!("{name}={kind}:{}", dir.join(&name))]);
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let daemon = Daemon::start(&arguments)?;
        let mut specs = WHO.map(|who| {
            Guest::named(who)
                .file("/ptnet.ko", 0o644, module.clone())
                .file("/netsend", 0o755, netsend.clone())
                .file("/netecho", 0o755, netecho.clone())
        });
        let (mut slots, mut next) = (Vec::new(), 0);
        for card in cards {
            let [a, b] = specs;
            let socket = |who: &str| dir.join(&port(who, card));
            slots.push(slot(next));
            next += 1;
            specs = match card.way {
                Way::Vhost => [(a, "a"), (b, "b")].map(|(spec, who)| {
                    spec.nic(Nic::vhost_user(socket(who), Role::QemuClient { reconnect_ms: 0 }, 1))
                }),
                Way::Vfio => [(a, "a"), (b, "b")].map(|(spec, who)| spec.nic(Nic::vfio_user(socket(who)))),
                Way::Ptnet => {
                    next += 1;
                    [(a, "a"), (b, "b")].map(|(spec, who)| {
                        let memory = format!("{}.mem", socket(who));
                        spec.nic(Nic::vfio_user(socket(who))).nic(Nic::vfio_user(memory))
                    })
                }
                Way::Qemu => {
                    let (left, right) = Nic::cable("virtio-net-pci")?;
                    [a.nic(left), b.nic(right)]
                }
            };
        }
        let mut guests = Guest::boot_all(specs)?;
        for guest in &mut guests {
            guest.expect("insmod /ptnet.ko")?;
        }
        let [_, b] = &mut guests;
        b.run_in_background(&format!("/netecho serve {PORT}"))?;
        b.wait_until(&format!("netstat -lnt | grep -q :{PORT}"), LIMIT)?;
        Ok(Self { daemon, guests, slots, _dir: dir })
    }

    /// Sets the card at `place` up in both guests.
    pub(super) fn plug(&mut self, place: usize, card: &'static Card) -> Result<Session<'_>> {
        let slot = self.slots.get(place).ok_or_else(|| Error::new(format!("no slot for {}", card.name)))?;
        let [a, b] = &mut self.guests;
        let interfaces =
            [Interface::up(a, slot, &address(place, 1))?, Interface::up(b, slot, &address(place, 2))?];
        for (guest, Interface { name, .. }) in [&mut *a, b].into_iter().zip(&interfaces) {
            // Linux's r8169 does not segment unless it is told to.
            guest.run(&format!("ethtool -K {name} sg on tso on"))?;
        }
        a.wait_until(&format!("ping -c 1 -W 1 {} > /dev/null", address(place, 2)), LIMIT)?;
        // No guest has this address: the receiver's IP layer counts the datagram and drops it.
        a.expect(&format!("arp -s {} {}", address(place, 3), interfaces[1].mac))?;
        Ok(Session { bench: self, place, card, interfaces })
    }
}

impl Session<'_> {
    /// Measures for so many seconds.
    pub(super) fn measure(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        let to = address(self.place, if matches!(test, Test::Datagrams(_)) { 3 } else { 2 });
        let mut before = self.seen()?;
        // The rate, so much of what is counted, and which part of it was lost.
        let (rate, work, lost) = match test {
            Test::Requests(bytes) => {
                let milliseconds = 1e3 * seconds;
                let command = format!("/netecho {to} {PORT} {bytes} {milliseconds:.0}");
                let text = self.sender().expect(&command)?;
                // "812 transactions in 500000000 ns"
                let word = |at| text.split(' ').nth(at).and_then(|word: &str| word.parse::<f64>().ok());
                let (done, time) = word(0).zip(word(3)).ok_or_else(|| Error::new(text.clone()))?;
                (done / time * 1e9, done, 0.0)
            }
            Test::Datagrams(bytes) => {
                let rate = netsend(self.sender(), &to, bytes, FIRST)?;
                let count = frames_of_a_second(rate * seconds);
                before = self.seen()?;
                let rate = netsend(self.sender(), &to, bytes, count)?;
                let received = number_of(self.seen()?.received - before.received);
                let share = received / f64::from(count);
                (rate * share, f64::from(count), (1.0 - share).max(0.0))
            }
            Test::Stream => {
                let [a, b] = &mut self.bench.guests;
                let report =
                    iperf3(b, &to, &format!("--time {}", seconds.max(1.0)), |command| a.run(command))?;
                let bytes = report["end"]["sum_received"]["bytes"].as_f64().unwrap_or_default();
                (received_gbits(&report), bytes / 1e6, 0.0)
            }
        };
        let after = self.seen()?;
        let each = |after: [u64; 2], before: [u64; 2]| {
            [0, 1].map(|who| number_of(after[who] - before[who]) / work.max(1.0))
        };
        Ok(Sample {
            rate,
            kicks: after.kicks.zip(before.kicks).map(|(after, before)| each(after, before)),
            traps: after.traps.zip(before.traps).map(|(after, before)| each(after, before)),
            interrupts: each(after.interrupts, before.interrupts),
            lost,
        })
    }

    fn sender(&mut self) -> &mut Guest {
        let [a, _] = &mut self.bench.guests;
        a
    }

    fn seen(&mut self) -> Result<Seen> {
        let (kicks, traps) = match self.card.way {
            Way::Qemu => (None, None),
            way => {
                let ports = self.bench.daemon.show_json("ports")?;
                let of = |who| counts(&ports, &port(who, self.card), way);
                let [(a, a_traps), (b, b_traps)] = [of(WHO[0])?, of(WHO[1])?];
                (Some([a, b]), a_traps.zip(b_traps).map(|(a, b)| [a, b]))
            }
        };
        let mut interrupts = [0; 2];
        for ((guest, interface), count) in
            self.bench.guests.iter_mut().zip(&self.interfaces).zip(&mut interrupts)
        {
            *count = interface.interrupts(guest)?;
        }
        let [_, b] = &mut self.bench.guests;
        let received = number(&b.expect(RECEIVED)?)?;
        Ok(Seen { kicks, traps, interrupts, received })
    }

    /// Sets the card down again.
    pub(super) fn end(self) -> Result<()> {
        let mut guests = self.bench.guests.iter_mut().zip(&self.interfaces);
        guests.try_for_each(|(guest, interface)| interface.down(guest))
    }
}

/// Kicks that reached an I/O core, and traps where there can be any.
fn counts(ports: &Value, name: &str, way: Way) -> Result<(u64, Option<u64>)> {
    let port = super::super::port(ports, name)?;
    Ok(match way {
        // Each kick is a trap, and the only one while frames pass.
        Way::Ptnet => feature(port, "kicks").map(|kicks| (kicks, Some(kicks)))?,
        Way::Vfio => (counter(port, "kicks")?, Some(Counts::of(ports, name)?.traps)),
        Way::Vhost | Way::Qemu => (counter(port, "kicks")?, None),
    })
}

/// The name of guest `who`'s port.
fn port(who: &str, card: &Card) -> String {
    format!("{who}-{}", card.name)
}

/// The address of `host` (1: `a`, 2: `b`, 3: none) in the network of a card.
fn address(place: usize, host: usize) -> String {
    format!("10.5.{place}.{host}")
}

/// Counts are far below 2⁵³.
fn number_of(count: u64) -> f64 {
    count as f64
}
