"""What guests do with a Realtek card, whose rings have no length and no tail."""

import random
import struct
import time

from outside import words
from outside.case import attack
from outside.daemon import until
from outside.flow import pause
from outside.realtek import BUFFERS, COUNT, EOR, FS, LS, LSO, OWN, RING, Card, next_one


@attack()
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


@attack()
def rtl8169_status_block(stage):
    """An rtl8169's status block is anything at any time, moves under its rings, lies in them, and at last where no memory is."""
    stage.start("rtl8169:DIR/evil.sock,csb=on")
    chance = random.Random(70)
    low, high = 0x70, 0x74
    with stage.during():
        card = Card(stage.at("evil.sock"))
        end = time.monotonic() + stage.seconds
        while time.monotonic() < end:
            block = chance.choice((0x10000, 0, 0x4000, card.size - 4096))
            card.write(high, 0)
            card.write(low, block)
            for _ in range(200):
                card.memory[block:block + 128] = chance.randbytes(128)
                words.put(card.memory, block + 12, 1)
                place = chance.randrange(1024)
                card.describe(place, 1 << 31 | 3 << 28 | chance.randrange(60, 9000), chance.randrange(0x20000, card.size - 70000))
            card.doorbell()
            if stage.daemon.port("evil")["state"].get("fault"):
                card.start()
        card.start()
        card.write(high, 1 << 20)
        card.write(low, 0x1000)
        card.doorbell()
        until(lambda: stage.daemon.port("evil")["state"].get("fault"), 10, "the fault")
        card.close()
    next_one(stage)


@attack()
def rtl8169_ends_that_move(stage):
    """An rtl8169's rings have their end elsewhere with each look, buffers of a byte or of 16 KiB, bases at the end of memory; its counters are dumped anywhere, and it is reset and reprogrammed in the middle of a flood."""
    stage.start("rtl8169:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    chance = random.Random(13)
    flood = stage.helper("flood", stage.at("other.sock"), 4 * stage.seconds, "--to", "ff:ff:ff:ff:ff:ff", "--bytes", 1000)
    counters = lambda: stage.daemon.port("evil")["counters"]
    RX, CPCR, DTCCR, MAC0, TCR = 0x10000, 0xE0, 0x10, 0x00, 0x40
    faults = 0
    with stage.during():
        card = Card(stage.at("evil.sock"))

        def begin(base=RX):
            card.write(0x37, 0x10, 1)
            for high, low, at in ((0x24, 0x20, 0), (0xE8, 0xE4, base)):
                card.write(high, at >> 32)
                card.write(low, at & 0xFFFFFFFF)
            card.write(0x37, 0x0C, 1)
            card.write(0x44, 0x0F)
            card.write(0xDA, 0x3FFF, 2)

        def receive(place, word):
            struct.pack_into("<Q", card.memory, RX + 16 * place + 8, 0x20000 + 16384 * (place % 128))
            words.put(card.memory, RX + 16 * place, word, "Q")

        begin()
        # The head is not at the beginning when the end comes before it.
        for place in range(1024):
            receive(place, OWN | 2048 | (EOR if place == 1023 else 0))
        until(lambda: counters()["out_frames"] > 0, 10, "frames for it")
        end = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < end:
            size = chance.choice((1, 1, 1, 3, 64, 0, 16383))
            for place in range(1024):
                receive(place, OWN | size | (EOR if chance.random() < 0.01 else 0))
            for place in range(256):
                word = OWN | FS | LS | (EOR if chance.random() < 0.02 else 0)
                word |= chance.choice((60, 1, 0xFFFF, 1500, LSO | chance.randrange(2048) << 16 | 9000, 1 << 49 | 0x81 << 32 | 100, 7 << 16 | 64))
                card.describe(place, word, chance.choice((BUFFERS, card.size - 100, card.size, 1 << 63, RX)))
            card.doorbell()
            for _ in range(20):
                to = chance.choice((0, RX, RX + 40, card.size - 64, card.size - 8, card.size, (1 << 64) - 64, chance.getrandbits(64)))
                card.write(DTCCR + 4, to >> 32)
                card.write(DTCCR, to & 0xFFFFFFC0 | 8)
                card.write(CPCR, chance.getrandbits(16), 2)
                card.write(0xE2, chance.getrandbits(16), 2)
                card.write(TCR, chance.getrandbits(32))
                for width in (1, 2, 4):
                    card.client.read(chance.randrange(64) * 4, chance.choice((0, 1)), width)
            card.write(MAC0, chance.getrandbits(32))
            card.client.write(chance.randrange(64) * 4, chance.getrandbits(32), 0, 4)
            stage.alive()
            if stage.daemon.port("evil")["state"].get("fault"):
                faults += 1
            begin(chance.choice((RX, RX, RX, card.size - 256, card.size - 4096, card.size, 1 << 40)))
            pause(0.01)
            if stage.daemon.port("evil")["state"].get("fault"):
                faults += 1
                begin()
        got = counters()["out_frames"]
        card.close()
    flood.end()
    stage.notes.update(got=got, faults=faults)
    stage.check(faults > 0 and got > 0, f"{faults} faults, {got} frames: nothing was tried")
    next_one(stage)
