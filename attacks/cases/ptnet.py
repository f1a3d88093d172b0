"""What a ptnet guest does to the blocks, rings and slots that it shares with an I/O core."""

import mmap
import os
import random
import struct
import threading
import time

from outside import ptnet, vhost
from outside.case import attack
from outside.daemon import until
from outside.ptnet import CREATE, DELETE, GUEST, HOST, KICKS, MORE, Nic

SECRET = b"FOR-THE-NEXT-VM-ALONE"


def guest(stage):
    nic = Nic(stage.at("evil.sock"))
    stage.cleanup(nic.close)
    return nic


def received(stage):
    return stage.daemon.port("evil")["counters"]["in_frames"]


def frame(n=0):
    return vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01", 60 + n % 1400)


@attack()
def ptnet_scribbler(stage):
    """A ptnet guest overwrites interface, rings, slots and its blocks with anything, as fast as it can, under its own kicks."""
    stage.start("ptnet:DIR/evil.sock,queues=4", beside=True)
    nic = guest(stage)
    end, wrote = threading.Event(), [0]
    # All but the buffers: interface, ring heads, slots.
    top = nic.rings[-1][0] + 256 + 16 * nic.rings[-1][1]

    def scribble():
        rng = random.Random(2)
        while not end.is_set():
            at = rng.randrange(0, top - 4096) & ~7
            nic.device.map[at:at + 512] = rng.randbytes(512)
            for slot in range(64):
                nic.slot(slot % nic.pairs, rng.randrange(1024), rng.choice((0, 1, 2, 7, 1 << 31, rng.randrange(4096))), rng.randrange(1 << 16),
                         rng.choice((0, MORE, rng.randrange(1 << 16))))
            struct.pack_into("<IIII", nic.memory, GUEST + 64 * rng.randrange(8), *(rng.choice((rng.randrange(1100), rng.randrange(1 << 32))) for _ in range(4)))
            wrote[0] += 1

    threads = [threading.Thread(target=scribble) for _ in range(2)]
    with stage.during():
        for thread in threads:
            thread.start()
        until_then, begun, rng = time.monotonic() + stage.seconds, 0, random.Random(3)
        # Longer where the processors are busy with something else.
        while (now := time.monotonic()) < until_then or (begun < 5 or wrote[0] < 50) and now < until_then + 30:
            nic.client.write(KICKS + 4 * rng.randrange(8), 0)
            nic.command(DELETE)
            begun += nic.command(CREATE) == 0
            for ring in range(4):
                nic.index(ring, rng.randrange(1024))
            stage.alive()
        end.set()
        for thread in threads:
            thread.join()
    port = stage.daemon.port("evil")
    stage.notes.update(wrote=wrote[0], begun=begun, drops=port["counters"]["drops"])
    stage.check(begun >= 5 and wrote[0] >= 50, "it never began, or wrote nothing: nothing was tried")
    # As new after a reset: what it overwrote is put back.
    nic.client.ask(13)
    nic.client.write(4, 7, 7, 2)
    nic.blocks()
    stage.check(nic.command(CREATE) == 0, "it cannot begin after a reset")
    nic.rings = [nic.ring(place) for place in range(2 * (nic.pairs + 1))]
    nic.head, before = 0, received(stage)
    nic.send(frame())
    until(lambda: stage.alive() or received(stage) > before, 30, "an honest frame comes after a reset")
    nic.client.close()
    nic.device.client.close()


@attack()
def ptnet_storm(stage):
    """A ptnet guest begins and ends, moves its blocks out of memory and back, takes memory away, and kicks, all without a pause."""
    stage.start("ptnet:DIR/evil.sock,queues=15")
    nic = guest(stage)
    rng, counts = random.Random(4), [0, 0]
    with stage.during():
        end = time.monotonic() + stage.seconds
        while (now := time.monotonic()) < end or counts[1] < 5 and now < end + 30:
            step = rng.randrange(6)
            if step == 0:
                nic.blocks(rng.choice((0, nic.size - 64, nic.size, 8, 1 << 63)), rng.choice((HOST, 0, nic.size - 4096, HOST + 4)))
            elif step == 1:
                nic.client.unmap(0, nic.size)
                nic.client.map(0, nic.size, nic.fd)
            elif step == 2:
                nic.client.ask(13)
                nic.client.write(4, 7, 7, 2)
            elif step == 3:
                nic.command(DELETE)
            else:
                nic.blocks()
                counts[nic.command(CREATE) == 0] += 1
            nic.client.write(KICKS + 4 * rng.randrange(32), 0)
            stage.alive()
    stage.notes.update(begun=counts[1], refused=counts[0], talk=stage.daemon.port("evil")["state"].get("conversation"))
    stage.check(counts[1] >= 5, "it hardly ever began: nothing was tried")
    nic.client.close()
    nic.device.client.close()


@attack(most=True)
def next_ptnet_memory(stage):
    """A ptnet VMM leaves and keeps the port's memory: that is empty as soon as the next VMM comes, and not the next one's, which receives and sends."""
    stage.start("ptnet:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    with stage.during():
        former = ptnet.Nic(stage.at("evil.sock"))
        kept = mmap.mmap(former.device.fd, former.device.size)
        file, number = os.dup(former.device.fd), os.fstat(former.device.fd).st_ino
        stage.cleanup(os.close, file)
        stage.check(os.fstat(file).st_blocks > 0, "it has no memory: nothing was tried")
        former.close()
        until(lambda: stage.daemon.port("evil")["state"]["peer"] == "waiting", 30, "the end of the former VMM")
        nic = ptnet.Nic(stage.at("evil.sock"))
        stage.cleanup(nic.close)
        stage.check(os.fstat(nic.device.fd).st_ino != number, "the next VMM has the memory of the former one")
        until(lambda: os.fstat(file).st_blocks == 0, 30, "the memory of the former VMM given back")
        guest = vhost.Guest(stage.at("other.sock"))
        stage.cleanup(guest.close)
        guest.send(vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:02")[:14] + SECRET.ljust(60, b"\0"))
        until(lambda: stage.daemon.port("evil")["counters"]["out_frames"] >= 1, 10, "a frame for the next VMM")
        stage.check(nic.device.map.find(SECRET) >= 0, "the next VMM has not got its frame")
        stage.check(kept.find(SECRET) < 0, "the former VMM reads a frame of the next one")
        # What the former one writes is not what the next one sends.
        _, _, bufs, size = nic.rings[0]
        at = bufs + size * struct.unpack_from("<I", nic.device.map, nic.rings[0][0] + 256)[0]
        before = nic.device.map[at:at + 4]
        kept[at:at + 4] = b"EVIL"
        stage.check(nic.device.map[at:at + 4] == before, "the former VMM writes into a buffer of the next one")
    kept.close()
    guest.close()
    nic.client.close()
    nic.device.client.close()
