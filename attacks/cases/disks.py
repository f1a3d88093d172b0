"""Disks: requests that cannot be, memory that changes under them, and backing files that go away."""

import os
import random
import struct
import threading
import time

from outside import disk, power
from outside.case import attack
from outside.daemon import Failure, until
from outside.disk import DISCARD, FLUSH, GET_ID, GONE, IN, IOERR, OK, OUT, SECURE_ERASE, UNSUPP, WRITE_ZEROES, header, segment
from outside.vhost import INDIRECT_FLAG, NEXT, WRITE

SIZE = 1 << 20
SECTORS = SIZE // 512


def begin(stage, options="", size=SIZE, **more):
    """The stage with one disk; its backing file."""
    path = disk.image(os.path.join(stage.folder(), "image"), size)
    stage.start(ports=[f"evil=blk:DIR/evil.sock,file={path}{options}"], **more)
    return path


def unharmed(stage, path, size=SIZE, fill=0x5A):
    """No guest wrote into the backing file, or beyond it."""
    data = open(path, "rb").read()
    stage.check(len(data) == size, f"the backing file has {len(data)} bytes instead of {size}")
    stage.check(data == bytes([fill]) * len(data), "a request that was refused has changed the backing file")


@attack()
def disk_requests(stage):
    """Requests beyond the disk, unaligned, empty, of unknown types: each has its status, and nothing is written."""
    path = begin(stage)
    with stage.during():
        guest = disk.connect(stage)
        block = b"\x11" * 4096
        for kind, sector, data, room, wanted in [
            (OUT, SECTORS, block, 0, IOERR), (IN, SECTORS, b"", 512, IOERR),
            (OUT, SECTORS - 1, block, 0, IOERR), (IN, SECTORS - 1, b"", 1024, IOERR),
            (OUT, 2**55, block, 0, IOERR), (OUT, 2**63, block, 0, IOERR), (OUT, 2**64 - 1, block, 0, IOERR),
            (IN, 2**64 - 8, b"", 4096, IOERR),
            (OUT, 0, b"\x11" * 511, 0, IOERR), (OUT, 0, b"\x11" * 513, 0, IOERR), (IN, 0, b"", 100, IOERR),
            (OUT, 0, b"", 0, IOERR), (IN, 0, b"", 0, IOERR),
            (2, 0, block, 0, UNSUPP), (99, 0, block, 512, UNSUPP), (2**32 - 1, 0, b"", 512, UNSUPP),
            (SECURE_ERASE, 0, segment(0, 8), 0, UNSUPP),
            (OUT | 2**31, 0, block, 0, UNSUPP),
        ]:
            status, _ = guest.ask(kind, sector, data, room)
            stage.check(status == wanted, f"type {kind} of {len(data)} + {room} bytes at {sector}: status {status} instead of {wanted}")
        for kind in (DISCARD, WRITE_ZEROES):
            for data in (b"", segment(0, 8)[:15], segment(0, 8) + b"\0", segment(SECTORS, 1), segment(SECTORS - 1, 2), segment(2**64 - 1, 8),
                         segment(2**55, 2**32 - 1), segment(0, 2**32 - 1), segment(0, 8, 0x80), segment(SECTORS, 8) * 2000):
                status, _ = guest.ask(kind, 0, data)
                stage.check(status in (IOERR, UNSUPP), f"type {kind} with ranges {data[:16].hex()} ({len(data)} bytes): status {status}")
        stage.check(guest.ask(FLUSH)[0] == OK, "a flush fails")
        status, name = guest.ask(GET_ID, room=20)
        stage.check(status == OK and len(name) == 20, "the disk has no name")
        stage.check(guest.ask(GET_ID, room=3)[0] in (OK, IOERR), "a name in three bytes")
    unharmed(stage, path)
    guest.close()
    disk.works(stage)


@attack()
def disk_chains(stage):
    """Chains without a header, without a status, with the writable part first, without an end, beyond all memory."""
    path = begin(stage)

    def tables(guest):
        at = guest.at(0)
        usual = guest.lay(0, OUT, 0, b"\x11" * 512)
        head, data, status = usual
        return [
            ("only a status", [status]),
            ("only a header", [head]),
            ("header and data, no status", [head, data]),
            ("a header of 15 bytes", [(at, 15, 0), status]),
            ("a header of no bytes", [(at, 0, 0), status]),
            ("a status of no bytes", [head, data, (at + 32, 0, WRITE)]),
            ("a header that is writable", [(at, 16, WRITE), data, status]),
            ("the writable part first", [status, head, data]),
            ("a writable piece between", [head, status, data]),
            ("data beyond memory", [head, (guest.size, 512, 0), status]),
            ("data across the end of memory", [head, (guest.size - 256, 512, 0), status]),
            ("data at the end of addresses", [head, (2**64 - 256, 512, 0), status]),
            ("a header beyond memory", [(2**40, 16, 0), data, status]),
            ("a status beyond memory", [head, data, (2**40, 1, WRITE)]),
            ("four gigabytes", [head, (at + 4096, 2**32 - 1, 0), status]),
            ("forty times four gigabytes", [head] + [(0, 2**32 - 1, 0)] * 40 + [status]),
            ("sixty pieces of no bytes", [head] + [(at, 0, 0)] * 60 + [status]),
            ("an indirect table of no bytes", [(at + 8192, 0, INDIRECT_FLAG)]),
            ("an indirect table of 17 bytes", [(at + 8192, 17, INDIRECT_FLAG)]),
            ("an indirect table beyond memory", [(2**40, 64, INDIRECT_FLAG)]),
            ("an indirect table of 4 GiB", [(at + 8192, 2**32 - 16, INDIRECT_FLAG)]),
        ]

    with stage.during():
        count = len(tables(guest := disk.connect(stage)))
        guest.close()
        seen = {}
        for n in range(count):
            guest = disk.connect(stage)
            name, chain = tables(guest)[n]
            try:
                answer = guest.chain(chain)
            except Failure:
                answer = "silence"
            seen[name] = answer
            stage.check(answer != OK, f"{name}: status OK")
            stage.check(answer != "silence", f"{name}: neither an answer nor a fault")
            guest.close()
        # Loops: of one descriptor, of two, and of an indirect table with itself.
        for name, next_of in (("a loop of one", [0]), ("a loop of two", [1, 0])):
            guest = disk.connect(stage)
            for i, following in enumerate(next_of):
                guest.queue.put(i, guest.at(0), 16, NEXT, following)
            guest.queue.offer(0)
            guest.queue.ring()
            until(lambda: guest.front.hung_up(0) or guest.used() == 1, 10, f"an end of {name}")
            guest.close()
        guest = disk.connect(stage)
        table = guest.at(0) + 8192
        for i in range(64):
            entry = struct.pack("<QIHH", guest.at(0), 16, NEXT, (i + 1) % 64)
            guest.memory[table + 16 * i:table + 16 * i + 16] = entry
        guest.queue.put(0, table, 64 * 16, INDIRECT_FLAG)
        guest.queue.offer(0)
        guest.queue.ring()
        until(lambda: guest.front.hung_up(0) or guest.used() == 1, 10, "an end of an indirect loop")
        guest.close()
        stage.notes["hung_up"] = sum(1 for answer in seen.values() if answer == GONE)
    unharmed(stage, path)
    disk.works(stage)


@attack()
def disk_requests_that_change(stage):
    """Header and data are rewritten while the requests run: from a sector on the disk to one beyond, from a read to a write."""
    path = begin(stage)
    with stage.during():
        guest = disk.connect(stage)
        stop = threading.Event()
        slots = 8
        honest = [header(IN, 0), header(OUT, 2**50), header(DISCARD, 1), header(IN, SECTORS - 1), header(OUT, SECTORS)]

        def rewrite():
            n = 0
            while not stop.is_set():
                n += 1
                for slot in range(slots):
                    at = guest.at(slot)
                    guest.memory[at:at + 16] = honest[n % len(honest)]
                    guest.memory[at + 4096:at + 4112] = segment(2**60 + n, 2**31)

        thread = threading.Thread(target=rewrite, daemon=True)
        thread.start()
        end = time.monotonic() + stage.seconds
        try:
            while time.monotonic() < end:
                for slot in range(slots):
                    # Readable and writable data: either type finds what it wants.
                    guest.offer(4 * slot, guest.lay(slot, IN, 0, room=4096))
                if not guest.answered(count=slots):
                    raise Failure("the daemon hung up on requests that change")
        finally:
            stop.set()
            thread.join()
    unharmed(stage, path)
    guest.close()
    disk.works(stage)


@attack()
def disk_file_cut_short(stage):
    """The backing file is cut short under reads and writes, then removed, and another file gets its name: what is not there fails, and the disk goes on with its own."""
    path = begin(stage)
    with stage.during(stage.seconds):
        guest = disk.connect(stage)
        stage.check(guest.ask(IN, SECTORS - 8, room=4096)[0] == OK, "the whole disk is not read")
        os.truncate(path, SIZE // 2)
        status, data = guest.ask(IN, SECTORS - 8, room=4096)
        stage.check(status == IOERR or data == bytes(4096), f"a read beyond the file's end: status {status}, something that is not there")
        stage.check(guest.ask(IN, 0, room=4096)[0] == OK, "what is left of the file is not read")
        os.truncate(path, 0)
        guest.ask(IN, 0, room=4096)
        guest.ask(FLUSH)
        os.truncate(path, SIZE)
        stage.check(guest.ask(OUT, 0, b"\x11" * 512)[0] == OK, "a file that has its size again is not written")
        os.remove(path)
        disk.image(path, SIZE, 0x77)
        stage.check(guest.ask(IN, 0, room=512) == (OK, b"\x11" * 512), "the disk has another file's bytes")
        stage.check(guest.ask(OUT, 8, b"\x33" * 512)[0] == OK and guest.ask(FLUSH)[0] == OK, "a removed file is not written")
    unharmed(stage, path, fill=0x77)
    guest.close()


@attack()
def disk_memory_cut_short(stage):
    """A guest cuts its memory short under the requests that read the disk into it."""
    begin(stage)
    for _ in range(8):
        with stage.during():
            guest = disk.connect(stage)
            for slot in range(8):
                guest.offer(4 * slot, guest.lay(slot, IN, 0, room=32 << 10))
            os.ftruncate(guest.fd, guest.room)
            guest.queue.ring()
            # The queue itself lies in what is left; requests have an answer, or the port a fault.
            until(lambda: guest.front.hung_up(0) or guest.used() == 8, 10, "answers, or an end")
            guest.close()
    disk.works(stage)


def stamped(block, number):
    return struct.pack("<QQ", number, block if number else 0) * 256


def version_of(data, block):
    """The version that a block holds: zeroes are version 0; nothing else than a whole version may be there."""
    number = struct.unpack_from("<Q", data)[0]
    if data == stamped(block, number):
        return number
    raise Failure(f"block {block} is torn: it begins with version {number}")


@attack(needs=("root", "fuse"))
def disk_power_cut(stage):
    """Power is cut after each flush of two disks: every write that was answered before it is there, and whole; on the one with cache=writethrough each answered one is."""
    platters = {"evil": power.Platter(SIZE), "through": power.Platter(SIZE)}
    for platter in platters.values():
        stage.cleanup(platter.close)
    options = {"evil": "", "through": ",cache=writethrough"}
    stage.start(ports=[f"{name}=blk:DIR/{name}.sock,file={platter.path}{options[name]}" for name, platter in platters.items()])
    with stage.during():
        for name, platter in platters.items():
            guest = disk.connect(stage, name)
            cuts(stage, guest, platter, name == "through")
            guest.close()


def cuts(stage, guest, platter, lasts_at_once):
    """Writes and flushes, several at a time; after each flush the disk is looked at as after a power cut."""
    chance = random.Random(7)
    blocks = SIZE // 4096
    done, number = [0] * blocks, 0
    for _ in range(60 if stage.full else 25):
        # A flush among writes: those answered before it was asked for have to last, the others may.
        wanted, busy = None, {}
        flush_slot = chance.randrange(8)
        for slot, block in enumerate(chance.sample(range(blocks), 8)):
            if slot == flush_slot:
                wanted = list(done)
                guest.offer(4 * slot, guest.lay(slot, FLUSH, 0))
                continue
            number += 1
            busy[slot] = block, number
            guest.offer(4 * slot, guest.lay(slot, OUT, 8 * block, stamped(block, number)))
        if not guest.answered(count=8):
            raise Failure("the daemon hung up on writes and flushes")
        stage.check(guest.status(flush_slot) == OK, "a flush fails")
        for slot, (block, its) in busy.items():
            stage.check(guest.status(slot) == OK, "a write fails")
            done[block] = its
        for block in range(blocks):
            found = version_of(platter.durable(4096 * block, 4096), block)
            least = done[block] if lasts_at_once else wanted[block]
            if found < least:
                raise Failure(f"block {block} has version {found} after a power cut; version {least} was promised")
    stage.check(platter.syncs.value > 0, "nothing was flushed: nothing was tried")
