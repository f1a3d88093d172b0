"""A vhost-user-blk front end: requests as they should be, and any other chain.

After virtio 1.2, section 5.2.
"""

import mmap
import os
import struct

from .daemon import Failure, until
from .vhost import INDIRECT, NEXT, P_CONFIG, P_INFLIGHT, P_MQ, P_REPLY_ACK, P_SLOTS, USER, VERSION_1, WRITE, FrontEnd, Guest, Queue, memfd

IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES, SECURE_ERASE = 0, 1, 4, 8, 11, 13, 14
OK, IOERR, UNSUPP, NOTHING = 0, 1, 2, 0xEE
GONE = "gone"
RO, F_FLUSH, F_DISCARD, F_WRITE_ZEROES = 1 << 5, 1 << 9, 1 << 13, 1 << 14
WANTED = VERSION_1 | INDIRECT | RO | F_FLUSH | F_DISCARD | F_WRITE_ZEROES
SLOT = 64 << 10  # memory of a request: header, status and data


def header(kind, sector):
    return struct.pack("<IIQ", kind, 0, sector & (1 << 64) - 1)


def segment(sector, count, flags=0):
    return struct.pack("<QII", sector, count, flags)


class Disk:
    """A front end with memory and one queue; region 0 is at guest address 0."""

    start = Guest.start

    def __init__(self, path, features=WANTED, size=8 << 20, timeout=40.0, ring=64, fd=None):
        self.fd = memfd(size) if fd is None else fd
        self.size = size
        self.memory = mmap.mmap(self.fd, size)
        self.front = FrontEnd(path, timeout)
        self.front.hello(features, P_REPLY_ACK | P_MQ | P_CONFIG | P_INFLIGHT | P_SLOTS)
        self.queue = Queue(self.memory, 0, ring)
        self.room = (self.queue.end + 4095) & ~4095
        self.seen = 0
        self.front.table([(0, size, USER, 0)], [self.fd])
        self.start(0, self.queue)
        self.front.sync()

    def at(self, slot):
        """Guest address of a request's memory: the header, the status 32 bytes further, data from 4,096 on."""
        return self.room + SLOT * slot

    def lay(self, slot, kind, sector, data=b"", room=0):
        """Writes header and data into a slot's memory; its usual chain, of (address, bytes, flags)."""
        at = self.at(slot)
        self.memory[at:at + 16] = header(kind, sector)
        self.memory[at + 32] = NOTHING
        self.memory[at + 4096:at + 4096 + len(data)] = data
        chain = [(at, 16, 0)]
        if data:
            chain.append((at + 4096, len(data), 0))
        if room:
            chain.append((at + 4096 + len(data), room, WRITE))
        return chain + [(at + 32, 1, WRITE)]

    def offer(self, first, chain):
        """Offers any chain, from descriptor `first` on."""
        for i, (at, size, flags) in enumerate(chain):
            last = i + 1 == len(chain)
            self.queue.put(first + i, at, size, flags | (0 if last else NEXT), first + i + 1)
        self.queue.offer(first)
        self.queue.ring()

    def used(self):
        return self.queue.used_index()

    def answered(self, seconds=10, count=1):
        """Waits for so many more answers; false if the daemon hangs up instead."""
        wanted = self.seen + count & 0xFFFF

        def come():
            return self.used() == wanted or self.front.hung_up(0)

        until(come, seconds, f"{count} answers of the disk")
        if self.used() != wanted:
            return False
        self.seen = wanted
        return True

    def status(self, slot):
        return self.memory[self.at(slot) + 32]

    def ask(self, kind, sector=0, data=b"", room=0, seconds=10):
        """One request alone; its status and what was written."""
        chain = self.lay(0, kind, sector, data, room)
        self.offer(0, chain)
        if not self.answered(seconds):
            raise Failure("the daemon hung up on an honest request")
        at = self.at(0) + 4096 + len(data)
        return self.status(0), bytes(self.memory[at:at + room])

    def chain(self, chain, slot=0):
        """Any chain alone: its status, NOTHING if it has none, or GONE if the daemon hung up."""
        self.memory[self.at(slot) + 32] = NOTHING
        self.offer(0, chain)
        if not self.answered():
            return GONE
        return self.status(slot)

    def close(self):
        if self.fd < 0:
            return
        self.front.close()
        for fd in (self.queue.kick, self.queue.call):
            os.close(fd)
        try:
            self.memory.close()
        except (BufferError, ValueError):
            pass
        os.close(self.fd)
        self.fd = -1


def image(path, size=1 << 20, fill=0x5A):
    """A backing file, every byte the same."""
    with open(path, "wb") as file:
        file.write(bytes([fill]) * size)
    return path


def connect(stage, name="evil", **more):
    disk = Disk(stage.at(f"{name}.sock"), **more)
    stage.cleanup(disk.close)
    return disk


def works(stage, name="evil", sector=0):
    """A new client is served: the disk is none the worse for what came before."""
    disk = connect(stage, name)
    status, _ = disk.ask(IN, sector, room=512)
    if status != OK:
        raise Failure(f"an honest read of {name} has the status {status}")
    disk.close()
