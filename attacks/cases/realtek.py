"""What guests do with a Realtek card, whose rings have no length and no tail."""

import os
import random
import struct
import time

from outside import vfio, vhost, words
from outside.case import attack
from outside.daemon import until

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


@attack("realtek")
def rtl8169_rings(stage):
    """Both rings of an rtl8169 are the same one, without an end, and their descriptors are anything at any time."""
    stage.start("rtl8169:DIR/evil.sock")
    chance = random.Random(8169)
    with stage.during():
        card = Card(stage.at("evil.sock"))
        # None of its packets ends; then each is a frame, of its own ring for the most part.
        for word in (OWN, OWN | 0xFFFF, OWN | LS | 0xFFFF, OWN | FS | LS | LSO | 0x3FF0000 | 9000):
            for place in range(COUNT):
                card.describe(place, word, RING)
            card.doorbell()
        end = time.monotonic() + stage.seconds
        while time.monotonic() < end:
            for _ in range(500):
                word = chance.getrandbits(64) | OWN if chance.random() < 0.5 else OWN | FS | LS | chance.randrange(60, 9000)
                card.describe(chance.randrange(COUNT), word, chance.randrange(0, card.size - 70000))
            card.doorbell()
        # Outside of its memory: this one stops it.
        for place in range(COUNT):
            card.describe(place, OWN | FS | LS | 1000, 1 << 40)
        card.doorbell()
        until(lambda: "address_out_of_range" in str(stage.daemon.port("evil")), 10, "the fault")
        card.close()
    next_one(stage)


@attack("realtek")
def rtl8169_registers(stage):
    """An rtl8169's registers are written in all widths, and the card is reset, as fast as its VMM can."""
    stage.start("rtl8169:DIR/evil.sock")
    chance = random.Random(8110)
    with stage.during():
        card = Card(stage.at("evil.sock"))
        end = time.monotonic() + stage.seconds
        while time.monotonic() < end:
            for _ in range(100):
                count = chance.choice((1, 2, 4))
                register = chance.randrange(256) // count * count
                if chance.random() < 0.2:
                    card.client.read(register, MEMORY, count)
                else:
                    card.write(register, chance.getrandbits(8 * count), count)
            for _ in range(20):
                card.write(CR, 0x10, 1)
                card.write(CR, 0x0C, 1)
                card.doorbell()
        card.close()
    next_one(stage)


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
