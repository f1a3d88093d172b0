"""As much of an rtl8169's driver as an attack needs: its rings have no length and no tail."""

import os
import struct

from . import vfio, vhost, words
from .daemon import until

MEMORY = 1  # the BAR
TNPDS, RDSAR, CR, TPPOLL, IMR, RCR = 0x20, 0xE4, 0x37, 0x38, 0x3C, 0x44
OWN, EOR, FS, LS, LSO = 1 << 31, 1 << 30, 1 << 29, 1 << 28, 1 << 27
RING, BUFFERS, COUNT = 0, 0x8000, 1024


class Card:
    """An rtl8169 whose two rings are one and the same, in memory that is mapped at address 0."""

    def __init__(self, path, size=4 << 20):
        self.fd = vhost.memfd(size)
        self.memory = vfio.mmap.mmap(self.fd, size)
        self.size = size
        self.client = vfio.Client(path)
        self.client.map(0, size, self.fd)
        self.client.write(4, 6, vfio.CONFIG, 2)  # memory space, bus master
        self.start()

    def write(self, register, value, count=4):
        self.client.write(register, value, MEMORY, count)

    def start(self):
        self.write(CR, 0x10, 1)
        for register in (TNPDS, RDSAR):
            self.write(register + 4, 0)
            self.write(register, RING)
        self.write(CR, 0x0C, 1)
        self.write(RCR, 0x0F)
        self.write(IMR, 0xFFFF, 2)

    def describe(self, place, word, buffer):
        struct.pack_into("<Q", self.memory, RING + 16 * place + 8, buffer)
        words.put(self.memory, RING + 16 * place, word, "Q")

    def doorbell(self):
        self.write(TPPOLL, 0x40, 1)

    def close(self):
        self.client.close()
        self.memory.close()
        os.close(self.fd)


def next_one(stage):
    """The next VMM's card sends a frame."""
    until(lambda: stage.daemon.port("evil")["state"]["peer"] == "waiting", 10, "the end of the former VMM")
    card = Card(stage.at("evil.sock"))
    before = stage.daemon.port("evil")["counters"]["in_frames"]
    frame = vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:03")
    card.memory[BUFFERS:BUFFERS + len(frame)] = frame
    card.describe(0, OWN | EOR | FS | LS | len(frame), BUFFERS)
    card.doorbell()
    until(lambda: stage.daemon.port("evil")["counters"]["in_frames"] > before, 10, "a frame of the next VMM")
    card.close()
