"""An I/O core's time in requests to a disk: pages that were never touched, or are gone again."""

import os
import statistics
import struct
import subprocess
import threading
import time

from outside import disk, fuse, vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.disk import DISCARD, FLUSH, GET_ID, IN, NOTHING, OK, OUT, WANTED, WRITE_ZEROES, header, segment
from outside.huge import A_FEW, PAGE, huge_file
from outside.vhost import INDIRECT_FLAG, NEXT, WRITE

SIZE = 1 << 20
FIRST = 8  # huge pages before those that were never touched: the ring, tables, headers
PAGES = 256  # and so many of those
PIECES = 250
MIB = 1 << 20


def media(stage):
    """What disks consist of: memory, nothing, a file in memory, a file elsewhere."""
    folder = stage.folder()
    where = os.path.join(folder, "memory")
    os.mkdir(where)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "memory", where], capture_output=True).returncode:
        raise Failure("tmpfs cannot be mounted")
    stage.cleanup(subprocess.run, ["umount", "-l", where])
    files = {"memory": disk.image(os.path.join(where, "image"), SIZE), "direct": disk.image(os.path.join(folder, "image"), SIZE)}
    return {"ram": "ram:1M", "null": "null:1M", **files}


def name(guest):
    """The disk's name, each byte in a page of its own, and the status in the next one; ten times."""
    return [[guest.plain(slot, GET_ID)[0], *((guest.page(21 * slot + i), 1, WRITE) for i in range(21))] for slot in range(10)]


class Untouched:
    """A disk's front end whose memory is huge pages that are made when they are touched."""

    def __init__(self, stage, name):
        self.size = (FIRST + PAGES) * PAGE
        self.fd = huge_file(stage, self.size)
        self.guest = disk.Disk(stage.at(f"{name}.sock"), features=WANTED, fd=self.fd, size=self.size)
        stage.cleanup(self.guest.close)

    def page(self, i):
        return (FIRST + i) * PAGE + 512 * (i % 64)

    def renew(self):
        vhost.punch(self.fd, FIRST * PAGE, PAGES * PAGE, True)

    def usual(self):
        """Microseconds of a processor that a page takes to be made, here and now: the median."""
        self.renew()

        def touched(i):
            start = time.thread_time()
            self.guest.memory[self.page(i)]
            return time.thread_time() - start

        return round(1e6 * statistics.median(map(touched, range(PAGES))))

    def table(self, slot, chain):
        """An indirect table of a chain of (address, bytes, flags), in huge page 1; its descriptor."""
        at = PAGE + 4096 * slot
        for i, (where, size, flags) in enumerate(chain):
            last = i + 1 == len(chain)
            struct.pack_into("<QIHH", self.guest.memory, at + 16 * i, where, size, flags | (0 if last else NEXT), i + 1)
        return at, 16 * len(chain), INDIRECT_FLAG

    def plain(self, slot, kind):
        """A header and the place of a status where every page is there."""
        at = 2 * PAGE + 64 * slot
        self.guest.memory[at:at + 16] = header(kind, 0)
        self.guest.memory[at + 32] = disk.NOTHING
        return (at, 16, 0), (at + 32, 1, WRITE)

    def ask(self, chains):
        """Offers all of them at once, and waits for their answers."""
        for slot, chain in enumerate(chains):
            self.guest.queue.put(slot, *self.table(slot, chain))
        self.guest.queue.offer(*range(len(chains)))
        self.guest.queue.ring()
        return self.guest.answered(60, len(chains))


def many(guest):
    """63 reads of one block; header, block and status are in pages of their own. A header of zeros is one of a read of block 0."""
    pages = lambda slot: (guest.page(4 * slot + i) for i in range(3))
    return [[(a, 16, 0), (b, 512, WRITE), (c, 1, WRITE)] for a, b, c in map(pages, range(63))]


def transfer(guest, kind):
    """250 blocks, each in a page of its own."""
    head, status = guest.plain(0, kind)
    flags = WRITE if kind == IN else 0
    return [[head, *((guest.page(i), 512, flags) for i in range(PIECES)), status]]


def ranges(guest, kind):
    """32 ranges of nothing, in 230 pieces; of the header only the type lies where everything else does."""
    (at, _, _), status = guest.plain(0, kind)
    lengths = [1] * 12 + [2] * 229 + [512 - 2 * 229]
    return [[(at, 4, 0), *((guest.page(i), size, 0) for i, size in enumerate(lengths)), status]]


def slow(stage, name):
    count = stage.daemon.port(name)["state"]["slow"]
    return count["batches"], count["total_us"]


SHAPES = {
    "read": lambda guest: transfer(guest, IN), "write": lambda guest: transfer(guest, OUT),
    "discard": lambda guest: ranges(guest, DISCARD), "zeroes": lambda guest: ranges(guest, WRITE_ZEROES),
    "name": name, "many": many,
}


@attack(needs=("root",))
def disk_of_huge_pieces(stage):
    """Requests to disks of each kind whose pieces lie in huge pages of their own that were never touched: data, ranges, names, headers, statuses."""
    kinds = media(stage)
    stage.start(ports=[f"{kind}=blk:DIR/{kind}.sock,file={file}" for kind, file in kinds.items()])
    stage.undisturbed()
    stage.notes["slow"] = {}
    with stage.during():
        for kind in kinds:
            guest = Untouched(stage, kind)
            usual, found = guest.usual(), {}
            for shape, chains in SHAPES.items():
                guest.renew()
                count, total = slow(stage, kind)
                answered = guest.ask(chains(guest))
                more, longer = slow(stage, kind)
                if not answered:  # it may be stopped for the time that its pages took
                    fault = stage.daemon.port(kind)["state"].get("fault")
                    stage.check("memory_stalled" in str(fault), f"{kind}: the daemon hung up on {shape}: {fault}")
                    break
                found[shape] = more - count, longer - total
            # What a page takes depends on the memory that is free at the moment.
            usual = max(usual, guest.usual())
            stage.notes["page_us"] = max(usual, stage.notes.get("page_us", 0))
            for shape, (visits, took) in found.items():
                if visits:
                    stage.notes["slow"][f"{kind} {shape}"] = [visits, took // 1000]
                # With a bound a visit ends with the page that took it beyond its turn; where each takes long there are many visits.
                bounded = took <= visits * (2 * A_FEW + 8 * usual) or visits >= PAGES // 8
                stage.check(bounded, f"{kind}: {shape} took {visits} visits of {took // 1000} ms together: no bound in time ends them")
            status = guest.guest.memory[2 * PAGE + 32]
            stage.check(status in (OK, disk.UNSUPP, disk.NOTHING), f"{kind}: status {status}")
            guest.guest.front.close()


@attack(needs=("root",))
def disk_of_punched_pieces(stage):
    """A VMM punches out the pages of its requests' pieces all the time, so that those that were found are gone when they are moved."""
    kinds = media(stage)
    stage.start(ports=[f"{kind}=blk:DIR/{kind}.sock,file={file}" for kind, file in kinds.items()])
    stage.undisturbed()
    stage.notes["slow"] = {}
    with stage.during():
        for kind in kinds:
            guest, stop = Untouched(stage, kind), threading.Event()

            def punching():
                # One by one: a thread that touches a page of a hole that is being made waits for all of it.
                while not stop.is_set():
                    for i in range(PAGES):
                        vhost.punch(guest.fd, (FIRST + i) * PAGE, PAGE, True)

            thread = threading.Thread(target=punching)
            usual = guest.usual()
            guest.renew()
            count, total = slow(stage, kind)
            thread.start()
            try:
                chains = transfer(guest, IN)
                guest.guest.queue.put(0, *guest.table(0, chains[0]))
                guest.guest.queue.offer(0)
                guest.guest.queue.ring()
                # It may take for ever while its pages are punched out.
                end = time.monotonic() + 3 * stage.seconds
                while guest.guest.used() != guest.guest.queue.next and time.monotonic() < end:
                    time.sleep(0.02)
            finally:
                stop.set()
                thread.join()
            until(lambda: guest.guest.used() == guest.guest.queue.next or guest.guest.front.hung_up(0), 30, "an answer once nothing is punched")
            more, longer = slow(stage, kind)
            visits, took = more - count, longer - total
            stage.notes["slow"][kind] = [visits, took // 1000, stage.daemon.port(kind)["state"]["slow"]["longest_us"] // 1000]
            usual = max(usual, guest.usual())
            stage.notes["page_us"] = max(usual, stage.notes.get("page_us", 0))
            # Some pages may be gone again when they are moved, but not all of a request's.
            bounded = took <= visits * (5 * A_FEW + 16 * usual)
            stage.check(bounded, f"{kind}: {visits} slow visits took {took // 1000} ms together: pages that were found are gone when they are moved")
            guest.guest.front.close()


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


@attack(needs=("root", "fuse"))
def disk_with_flushes_that_hang(stage):
    """A disk on FUSE whose server falls silent has forty flushes and writes under way: each occupies a worker of the kernel's, which another disk needs, too."""
    kinds = [(FLUSH, 0, 0, b"") if n % 2 else (OUT, 8 * n, 4096, b"x" * 4096) for n in range(40)]
    file = fuse.Stalled(16 * MIB, silent=False, answers=True)
    stage.cleanup(file.close)
    other = disk.image(os.path.join(stage.folder(), "image"), 4 * MIB)
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
