"""What has an I/O core wait for others: file systems whose servers are silent, and pages that are being given back while it looks at them."""

import os
import time

from outside import disk, fuse, vhost
from outside.case import attack
from outside.daemon import until
from outside.disk import DISCARD, FLUSH, IN, NOTHING, OK, OUT, header, segment
from outside.vhost import WRITE, Guest, Queue, frame, memfd

from .seventh import undisturbed

MIB = 1 << 20


def offer(guest, kinds, room=64 << 10):
    """Requests side by side, of three descriptors each, each with data of its own: (kind, sector, bytes, further data of ours)."""
    for slot, (kind, sector, size, data) in enumerate(kinds):
        at = guest.room + 64 * slot
        where = guest.room + room + 4096 * slot
        guest.memory[at:at + 16] = header(kind, sector)
        guest.memory[at + 32] = NOTHING
        guest.memory[where:where + len(data)] = data
        chain = [(at, 16, 0)] + ([(where, size, WRITE if kind == IN else 0)] if size else []) + [(at + 32, 1, WRITE)]
        for i, (place, length, flags) in enumerate(chain):
            last = i + 1 == len(chain)
            guest.queue.put(3 * slot + i, place, length, flags | (0 if last else vhost.NEXT), 3 * slot + i + 1)
    guest.queue.offer(*(3 * slot for slot in range(len(kinds))))
    guest.queue.ring()


def silent_disk(stage, kinds):
    """A disk on a file whose server answers nothing any more, with these requests under way; another disk on the same I/O core works."""
    file = fuse.Stalled(16 * MIB, silent=False, answers=True)
    stage.cleanup(file.close)
    other = disk.image(os.path.join(disk.folder(stage), "image"), 4 * MIB)
    stage.start(ports=[f"evil=blk:DIR/evil.sock,file={file.path}", f"other=blk:DIR/other.sock,file={other}"])
    evil, honest = disk.connect(stage, ring=256), disk.connect(stage, "other")
    stage.check(evil.ask(IN, 0, room=512)[0] == OK, "the disk does not work at first")
    file.silent.value = 1
    with stage.during(seconds=2):
        offer(evil, kinds)
        for n in range(20):
            for kind, data in ((OUT, b"x" * 4096), (FLUSH, b""), (DISCARD, segment(8 * n, 8))):
                stage.check(honest.ask(kind, 0 if kind != OUT else 8 * n, data, seconds=30)[0] == OK, "the other disk fails")
    stage.check(all(evil.memory[evil.room + 64 * n + 32] == NOTHING for n in range(len(kinds))), "it was answered: nothing was tried")
    file.close()
    until(lambda: stage.alive() or evil.memory[evil.room + 32] != NOTHING, 30, "a request fails when the server is gone")
    evil.close()
    honest.close()


@attack("ninth", needs=("root", "fuse"))
def disk_on_a_silent_server(stage):
    """A disk's file is on FUSE, as qemu-storage-daemon exports one, and its server answers no read any more."""
    silent_disk(stage, [(IN, 8 * n, 4096, b"") for n in range(16)])


@attack("ninth", needs=("root", "fuse"))
def disk_with_flushes_that_hang(stage):
    """Forty flushes and writes of a disk on FUSE hang: each occupies a worker of the kernel's, which another disk needs, too."""
    silent_disk(stage, [(FLUSH, 0, 0, b"") if n % 2 else (OUT, 8 * n, 4096, b"x" * 4096) for n in range(40)])


@attack("ninth", needs=("root",))
def looks_that_wait(stage):
    """A VMM gives its available ring's pages back while the I/O core looks at them between two visits: a neighbour must not pay for it."""
    size = 384 * MIB
    stage.start("vhost-user:DIR/evil.sock", beside=True, ping=False)
    fd = memfd(size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, receive=0, start=False)
    stage.cleanup(guest.close)
    guest.tx = tx = Queue(guest.memory, 512 << 10, 256)
    tx.used, tx.avail = 768 << 10, 2 * MIB  # of all that, only the available ring is given back
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    data = b"\0" * 12 + frame("02:00:00:00:00:99", "02:00:00:00:ee:01")
    guest.memory[MIB:MIB + len(data)] = data
    for slot in range(256):
        tx.put(slot, MIB, len(data))

    def send(count):
        tx.offer(*range(count))
        tx.ring()
        until(lambda: stage.alive() or tx.used_index() == tx.next & 0xFFFF, 30, "frames are taken")

    # Its index is 0 again, as that of a ring that was given back, and the last frames came singly: it is looked at.
    while tx.next % 65536 != 65536 - 128:
        send(min(256, 65536 - 128 - tx.next % 65536))
    for _ in range(128):
        send(1)
    undisturbed(stage)
    busy = lambda name: stage.daemon.port(name)["state"]["service"]["busy_ns"] / 1e9
    overrun = lambda name: stage.daemon.port(name)["state"]["overrun"]["total_us"]
    before = {name: (busy(name), overrun(name)) for name in ("a", "evil")}
    took = 0
    with stage.during():
        for _ in range(24 if stage.full else 10):
            vhost.punch(fd, 2 * MIB, size - 3 * MIB, False)
            tx.ring()
            time.sleep(0.003)  # it is looked at by now, and will be in the next moment
            start = time.monotonic()
            vhost.punch(fd, 2 * MIB, size - 3 * MIB, True)
            took += time.monotonic() - start
            if stage.daemon.port("evil")["state"].get("fault"):
                break
    spent = {name: (busy(name) - before[name][0], overrun(name) - before[name][1]) for name in before}
    stage.notes.update(punched_s=round(took, 1), overrun_us={name: n for name, (_, n) in spent.items()},
                       charged_s={name: round(s, 2) for name, (s, _) in spent.items()})
    stage.check(spent["a"][1] == 0, "an overrun was counted at an honest neighbour")
    stage.check(spent["evil"][0] > took / 10 or took < 0.5, f"of {took:.1f} s of waiting it was charged for {spent['evil'][0]:.2f}")
    guest.close()
