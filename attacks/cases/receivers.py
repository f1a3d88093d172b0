"""Receivers that are slow, are made to look so, or cost the host much."""

import os
import struct
import subprocess
import threading
import time

from outside import vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import Beside, pause
from outside.host import EVIL, HONEST, Host
from outside.huge import PAGE, huge_file
from outside.namespaces import drained, heard
from outside.vhost import Guest, mac

THIRD = "02:00:00:00:ee:03"
BROADCAST = "ff:ff:ff:ff:ff:ff"


class Slow:
    """A guest each of whose receive buffers is made slow by `prepare(slot)`, before it is offered and offered again."""

    def __init__(self, guest, slots, prepare):
        self.guest, self.prepare, self.got = guest, prepare, 0
        self.seen, self.stop = 0, threading.Event()
        for slot in range(slots):
            prepare(slot)
        guest.rx.offer(*range(slots))
        self.thread = threading.Thread(target=self.run)

    def run(self):
        rx = self.guest.rx
        while not self.stop.is_set():
            used = rx.used_index()
            while self.seen != used:
                slot = struct.unpack_from("<I", self.guest.memory, rx.used + 4 + 8 * (self.seen % rx.size))[0]
                self.prepare(slot % rx.size)
                rx.offer(slot % rx.size)
                self.seen, self.got = self.seen + 1 & 0xFFFF, self.got + 1
            pause(0.0005)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def burst(guest, count, size):
    """Frames for a station that has not spoken yet, all at once."""
    data = b"\0" * 12 + vhost.frame("02:00:00:00:00:99", "02:00:00:00:00:01", size)
    guest.memory[guest.out:guest.out + len(data)] = data
    slots = [(guest.tx.next + i) % guest.tx.size for i in range(count)]
    for slot in slots:
        guest.tx.put(slot, guest.out, len(data))
    guest.tx.offer(*slots)
    guest.tx.ring()


def beside(stage, slow, sender, each, gap, size=60):
    """An honest guest sends `each` frames a time; what the slow receiver may have cost by then."""
    start = time.monotonic()
    with stage.during(), slow:
        while time.monotonic() < start + max(stage.seconds, 2):
            if sender.tx.used_index() == sender.tx.next:
                burst(sender, each, size)
            pause(gap)
        stage.progress("while the receiver is slow")
        took = time.monotonic() - start
        evil, other = stage.daemon.port("evil"), stage.daemon.port("other")
        drops, overrun = evil["counters"]["drops"], evil["state"]["overrun"]
        spent, refused = overrun["total_us"] / 1e6, drops.get("overrun", 0) + drops.get("receiver_busy", 0)
        stage.notes.update(got=slow.got, refused=refused, overrun=overrun, sender=other["state"]["slow"])
        stage.check(slow.got or refused, "nothing came to the slow receiver: nothing was tried")
        charged = other["state"]["slow"]["total_us"] / 1e6
        stage.judge(charged <= 0.25 * took + 0.3, f"{charged:.2f} s of {took:.2f} s went into its memory, charged to the honest sender")
        # A twentieth, and one that began within its time.
        stage.judge(spent <= 0.25 * took + 0.3, f"{spent:.2f} s of {took:.2f} s of the I/O core went into the slow receiver's memory")
        for port in (evil, other):
            fault = port["state"].get("fault")
            # The owner of the pages may be stopped for the time that they took.
            stage.check(not fault or port is evil and "memory_stalled" in str(fault), f"port {port['name']}: {fault}")


@attack(needs=("root",))
def untouched_buffers(stage):
    """Each receive buffer lies in a huge page that was never touched; an honest guest sends broadcasts, and must not pay for clearing them."""
    slots, size = 128, 160 * PAGE
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), size, fd=huge_file(stage, size), start=False)
    stage.cleanup(guest.close)

    def prepare(slot):
        at = (8 + slot) * PAGE
        vhost.punch(guest.fd, at, PAGE, True)
        guest.rx.put(slot, at, 2048, vhost.WRITE)

    slow = Slow(guest, slots, prepare)
    guest.front.table([(0, size, vhost.USER, 0)], [guest.fd])
    guest.start(0, guest.rx)
    guest.start(1, guest.tx)
    guest.front.sync()
    other = Guest(stage.at("other.sock"), receive=10)
    stage.cleanup(other.close)
    beside(stage, slow, other, 16, 0.02)
    guest.front.close()
    other.front.close()


@attack(needs=("root",))
def blamed_for_a_sender(stage):
    """A sender's frames end in pages that its VMM punches out meanwhile, so that deliveries to an honest receiver take long: none of that one's frames may be dropped as a slow receiver's."""
    # Not where 2 MiB begin: a frame that crosses that has its pages looked at before.
    hole, first = 64 << 20, (16 << 20) + 0x3000
    stage.start("vhost-user:DIR/evil.sock", ports=["victim=vhost-user:DIR/victim.sock,switch=evil", "honest=vhost-user:DIR/honest.sock,switch=evil"])
    victim = Host(stage, "victim", HONEST)
    victim.send(vhost.frame(BROADCAST, HONEST))
    honest = Host(stage, "honest", THIRD)
    size = (32 << 20) + hole
    guest = Guest(stage.at("evil.sock"), size)
    stage.cleanup(guest.close)
    data = bytes(12) + vhost.frame(HONEST, EVIL, 1500)
    # The head is in a page that stays, and the end in the first of those that do not.
    at = first - 12 - 700
    guest.memory[at:at + 712] = data[:712]
    for slot in range(guest.tx.size):
        guest.tx.put(slot, at, len(data))
    for slot in range(guest.tx.size):
        struct.pack_into("<H", guest.memory, guest.tx.avail + 4 + 2 * slot, slot)

    def punch():
        vhost.punch(guest.fd, first, hole, False)
        guest.tx.index(guest.tx.used_index() + 8)
        guest.tx.ring()
        vhost.punch(guest.fd, first, hole, True)

    sent = got = 0
    with stage.during(), Beside(punch, stage.cpus):
        end = time.monotonic() + 5 * stage.seconds
        while time.monotonic() < end:
            stage.alive()
            honest.send(*[vhost.frame(HONEST, THIRD, 1000)] * 16)
            sent += 16
            pause(0.002)
            got += sum(it[6:12] == mac(THIRD) for it in victim.come())
        port, evil = stage.daemon.port("victim"), stage.daemon.port("evil")
        drops = {why: n for why, n in port["counters"]["drops"].items() if n}
        stage.notes.update(sent=sent, got=got, drops=drops, evil=evil["state"]["slow"], fault=evil["state"].get("fault"), slow=port["state"]["slow"], frames=evil["counters"]["in_frames"])
        stage.check(not drops.get("overrun"), f"an honest receiver lost {drops} of {sent} frames of an honest sender")
        stage.check(not port["state"].get("fault"), f"the victim: {port['state'].get('fault')}")
    for host in (victim, honest):
        host.guest.close()
    guest.close()


@attack(needs=("root", "tun"))
def frames_that_cost_the_host(stage):
    """A guest floods a TAP port behind which the kernel takes long for each frame: none of another guest's frames there may be dropped as if the interface were a slow guest."""
    name = f"scatk{os.getpid() % 100_000}"
    stage.start("vhost-user:DIR/evil.sock", ports=["honest=vhost-user:DIR/honest.sock,switch=evil", f"tap=tap:{name},switch=evil"], neighbours=False)
    stage.undisturbed()
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    try:
        subprocess.run(["tc", "qdisc", "add", "dev", name, "ingress"], check=True, capture_output=True)
        # The kernel compares each frame with all of them.
        filters = "".join(f"filter add dev {name} ingress protocol all prio {n + 1} u32 match u32 {n + 1:#x} 0xffffffff at 20\n" for n in range(1000))
        subprocess.run(["tc", "-batch", "-"], input=filters, text=True, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(f"the kernel has no filters for an interface: {error}") from None
    listener = heard(name, 8, mac(HONEST)[2:])
    stage.cleanup(listener.close)
    honest, sent = Host(stage, "honest", HONEST), 0
    counters = lambda: stage.daemon.port("tap")["counters"]
    with stage.during():
        flood = stage.helper("flood", stage.at("evil.sock"), max(3 * stage.seconds, 3), "--to", "02:00:00:00:00:77")
        until(lambda: stage.alive() or stage.daemon.port("evil")["counters"]["in_frames"] > 20_000, 20, "the flood")
        come = []
        while flood.process.poll() is None:
            honest.send(vhost.frame("02:00:00:00:00:78", HONEST))
            sent += 1
            pause(0.01)
            drained(listener, come)
        flood.end()
        until(lambda: stage.alive() or honest.guest.tx.used_index() == honest.guest.tx.next, 10, "all are taken")
        pause(0.1)
        drained(listener, come)
        drops = {why: n for why, n in counters()["drops"].items() if n}
        stage.notes.update(sent=sent, come=len(come), drops=drops, out=counters()["out_frames"])
    stage.check(sent > 20, f"{sent} honest frames: nothing was tried")
    stage.check(not drops.get("overrun") and not drops.get("receiver_busy"), f"{len(come)} of {sent} honest frames come; the interface's drops are {drops}")
    honest.guest.close()
