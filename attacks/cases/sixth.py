"""What guests do to those who send to them, and what users do to others' ports, holders and start."""

import os
import struct
import subprocess
import tempfile
import threading
import time

from outside import vhost
from outside.case import Skip, attack
from outside.flow import pause
from outside.vhost import Guest

from .core import BROADCAST

HUGE = 2 << 20


def huge_file(stage, size):
    """A file on a tmpfs that clears 2 MiB at a time, as an ordinary user mounts one in a namespace of its own."""
    try:
        if "[deny]" in open("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read():
            raise Skip("the kernel makes no huge pages of files in memory")
    except FileNotFoundError:
        raise Skip("the kernel has no transparent huge pages") from None
    folder = tempfile.mkdtemp(prefix="sidecore-attack-huge-")
    stage.cleanup(os.rmdir, folder)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},huge=always", "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"no tmpfs of huge pages: {done.stderr.strip()}")
    stage.cleanup(subprocess.run, ["umount", "-l", folder])
    fd = os.open(os.path.join(folder, "memory"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


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


def beside(stage, slow, sender, each, gap):
    """An honest guest sends `each` broadcasts a time; what the slow receiver may have cost by then."""
    start = time.monotonic()
    with stage.during(), slow:
        while time.monotonic() < start + max(stage.seconds, 2):
            if sender.tx.used_index() == sender.tx.next:
                for _ in range(each):
                    sender.send(vhost.frame(BROADCAST, "02:00:00:00:00:01"))
            pause(gap)
        stage.progress("while the receiver is slow")
        took = time.monotonic() - start
        evil, other = stage.daemon.port("evil"), stage.daemon.port("other")
        count = evil["state"]["slow"]
        spent, refused = count.get("deliveries_us", 0) / 1e6, evil["counters"]["drops"].get("slow_receiver", 0)
        stage.notes.update(got=slow.got, refused=refused, deliveries=count.get("deliveries"), spent_ms=round(1e3 * spent), sender=other["state"]["slow"])
        stage.check(refused > 0, f"the slow receiver was given all {slow.got} frames; its sender's count: {other['state']['slow']}")
        # A fifth, what is free at first, and one that began within its time.
        stage.check(spent <= 0.25 * took + 0.3, f"{spent:.2f} s of {took:.2f} s of the I/O core went into the slow receiver's memory")
        for port in (evil, other):
            stage.check(not port["state"].get("fault"), f"port {port['name']}: {port['state'].get('fault')}")


@attack("sixth", needs=("root",))
def untouched_buffers(stage):
    """Each receive buffer lies in a huge page that nobody has touched; an honest guest sends broadcasts, and must not pay for clearing them."""
    slots, size = 128, 160 * HUGE
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), size, fd=huge_file(stage, size), start=False)
    stage.cleanup(guest.close)

    def prepare(slot):
        at = (8 + slot) * HUGE
        vhost.punch(guest.fd, at, HUGE, True)
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
