"""What an end of a pipe does to its partner, and to ports that have no part in it."""

import random
import struct
import threading
import time

from outside import vhost, words
from outside.case import attack
from outside.daemon import until
from outside.ptnet import CREATE, DELETE, GUEST, HOST, KICKS, MORE, Nic

PORTS = ("evil=ptnet:DIR/evil.sock,pipe=p", "mate=ptnet:DIR/mate.sock,pipe=p")


def ends(stage):
    nics = [Nic(stage.at(f"{name}.sock")) for name in ("evil", "mate")]
    for nic in nics:
        stage.cleanup(nic.close)
    return nics


def frame(n=0):
    return vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01", 60 + n % 1400)


def place(nic, ring):
    """The host's two indices of ring `ring`."""
    return tuple(words.get(nic.memory, HOST + 64 * ring + at) for at in (0, 4))


def gone(stage, nics):
    """Their VMMs leave."""
    for nic in nics:
        nic.client.close()
        nic.device.client.close()
    until(lambda: all(stage.daemon.port(name)["state"]["peer"] == "waiting" for name in ("evil", "mate")), 30, "both have gone")


def received(stage, name):
    return stage.daemon.port(name)["counters"]["out_frames"]


@attack("pipes")
def pipe_indices(stage):
    """An end of a pipe gives heads that are no slots, go back, or release what it was not given; its partner's frames wait, and go on."""
    stage.start(ports=PORTS)
    evil, mate = ends(stage)
    slots, rng, stops = mate.rings[0][1], random.Random(1), 0
    with stage.during():
        for n in range(20):
            mate.send(frame(n))
            until(lambda: stage.alive() or received(stage, "evil") == n + 1, 30, "an honest frame comes")
            ring = n % 2
            evil.index(ring, rng.choice((slots, 0x7FFFFFFF, 0xFFFFFFFF, rng.randrange(1 << 32) | 1 << 20)))
            evil.client.write(KICKS, 0)
            until(lambda: stage.alive() or stage.daemon.port("evil")["state"].get("fault"), 30, "the liar is stopped")
            stops += "bad_head" in str(stage.daemon.port("evil")["state"]["fault"])
            stage.check(not stage.daemon.port("mate")["state"].get("fault"), "its partner is stopped for it")
            stage.check(evil.command(DELETE) == 0 and evil.command(CREATE) == 0, "it cannot begin again")
            # What has come is released.
            evil.index(1, place(evil, 1)[1])
            stage.alive()
    stage.notes.update(stops=stops)
    stage.check(stops == 20, f"its lies were noticed {stops} times")
    gone(stage, (evil, mate))


@attack("pipes")
def pipe_scribbler(stage):
    """An end of a pipe overwrites rings, slots and the places of the ways of both ends, as fast as it can, while its partner sends."""
    stage.start(ports=PORTS)
    evil, mate = ends(stage)
    end, wrote = threading.Event(), [0]
    top = max(at + 256 + 16 * slots for at, slots, _, _ in evil.rings + mate.rings)

    def scribble():
        rng = random.Random(2)
        while not end.is_set():
            evil.device.map[(at := rng.randrange(0, top) & ~7):at + 512] = rng.randbytes(512)
            # Behind the buffers, where the daemon notes how far the ways are.
            at = rng.randrange(evil.device.size // 2, evil.device.size - 512) & ~7
            evil.device.map[at:at + 512] = rng.randbytes(512)
            for slot in range(64):
                evil.slot(0, rng.randrange(1024), rng.choice((0, 1, 2, 7, 1 << 31, rng.randrange(4096))), rng.randrange(1 << 16),
                          rng.choice((0, MORE, rng.randrange(1 << 16))))
            struct.pack_into("<II", evil.memory, GUEST + 64 * rng.randrange(2), *(rng.randrange(1024) for _ in range(2)))
            wrote[0] += 1

    threads = [threading.Thread(target=scribble) for _ in range(2)]
    rng, begun = random.Random(3), 0
    with stage.during():
        for thread in threads:
            thread.start()
        stop = time.monotonic() + stage.seconds
        # Longer where the processors are busy with something else.
        while (now := time.monotonic()) < stop or (begun < 5 or wrote[0] < 50) and now < stop + 30:
            mate.index(0, rng.randrange(1024))
            mate.index(1, place(mate, 1)[1] % 1024)
            for nic in (evil, mate):
                nic.client.write(KICKS, 0)
                nic.command(DELETE)
                begun += nic.command(CREATE) == 0
            stage.alive()
        end.set()
        for thread in threads:
            thread.join()
    stage.notes.update(wrote=wrote[0], begun=begun)
    stage.check(begun >= 5 and wrote[0] >= 50, "it never began, or wrote nothing: nothing was tried")
    # Both ends are empty: the next to come finds a pipe that works.
    gone(stage, (evil, mate))
    a, b = ends(stage)
    before = received(stage, "mate")
    a.send(frame())
    until(lambda: stage.alive() or received(stage, "mate") == before + 1, 30, "an honest frame comes")
    stage.check(place(b, 1)[1] == 1, "it is not the first one of a new ring")
    gone(stage, (a, b))


@attack("pipes")
def pipe_that_nobody_empties(stage):
    """An end of a pipe gives up all slots at once and never releases any, with frames that have no end, for as long as it can."""
    stage.start(ports=PORTS)
    evil, mate = ends(stage)
    slots, sent = evil.rings[0][1], 0
    # Once, before any is given up: a slot that is written anew has no flags for a moment.
    for slot in range(slots):
        evil.slot(0, slot, 2 + slot, 60, MORE)
    with stage.during():
        stop = time.monotonic() + stage.seconds
        while time.monotonic() < stop:
            hwcur, hwtail = place(evil, 0)
            evil.index(0, hwtail)
            evil.client.write(KICKS, 0)
            sent += 1
            stage.alive()
            time.sleep(0.001)
    stage.notes.update(sent=sent)
    stage.check(received(stage, "mate") == 0, "a frame without an end was passed on")
    mate.send(frame())
    until(lambda: stage.alive() or received(stage, "evil") == 1, 30, "the other direction goes on")
    gone(stage, (evil, mate))
