"""What an end of a pipe does to its partner, and to ports that have no part in it."""

import mmap
import os
import random
import select
import signal
import struct
import threading
import time

from outside import vhost, words
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import Beside
from outside.ptnet import CREATE, DELETE, GUEST, HOST, KICKS, MORE, Nic
from outside.ring import Ring, ask

PORTS = ("evil=ptnet:DIR/evil.sock,pipe=p", "mate=ptnet:DIR/mate.sock,pipe=p")


def ends(stage):
    nics = [Nic(stage.at(f"{name}.sock")) for name in ("evil", "mate")]
    for nic in nics:
        stage.cleanup(nic.close)
    return nics


def gone(stage, nics):
    """Their VMMs leave."""
    for nic in nics:
        nic.client.close()
        nic.device.client.close()
    until(lambda: all(stage.daemon.port(name)["state"]["peer"] == "waiting" for name in ("evil", "mate")), 30, "both have gone")


def received(stage, name):
    return stage.daemon.port(name)["counters"]["out_frames"]


def frame(n=0):
    return vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01", 60 + n % 1400)


def place(nic, ring):
    """The host's two indices of ring `ring`."""
    return tuple(words.get(nic.memory, HOST + 64 * ring + at) for at in (0, 4))


@attack()
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


@attack(most=True)
def pipe_head_that_flips(stage):
    """An end of a pipe changes its head between one that is no slot and one that its partner has, so that a look finds the first and the visit the second."""
    stage.start(ports=PORTS)
    evil, mate = ends(stage)
    given, released = 300, 50
    for slot in range(given):
        evil.slot(0, slot, 2 + slot, 60)
    evil.index(0, given)
    evil.client.write(KICKS, 0)
    until(lambda: place(mate, 1)[1] == given, 10, "the frames come")
    mate.index(1, released)
    until(lambda: place(evil, 0)[0] == released, 10, "some are given back")

    def flip():
        for _ in range(2000):
            words.put(evil.memory, GUEST, 0xFFFFFFFF)
            words.put(evil.memory, GUEST, released + 10)

    stops, wrong = 0, None
    with stage.during(), Beside(flip):
        stop = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < stop and wrong is None:
            evil.client.write(KICKS, 0)
            shown = place(mate, 1)[1]
            if released < shown < given:
                wrong = shown
            if stage.daemon.port("evil")["state"].get("fault"):
                stops += 1
                evil.command(DELETE)
                evil.command(CREATE)
            stage.alive()
    stage.notes.update(stops=stops)
    stage.check(wrong is None, f"slots up to {wrong} are in its partner's hands twice")
    stage.check(stops > 0, "it was never stopped: nothing was tried")
    # Its partner has done nothing wrong, and goes on.
    mate.index(1, place(mate, 1)[1])
    stage.check(not stage.daemon.port("mate")["state"].get("fault"), "its partner is stopped for it")
    gone(stage, (evil, mate))


@attack()
def pipe_receiver_that_stalls(stage):
    """The receiving end of a pipe punches out the page with its indices, and no other one, while its partner sends: whose memory it is has to pay."""
    stage.start(ports=PORTS)
    mate = Nic(stage.at("mate.sock"))
    evil = Nic(stage.at("evil.sock"), create=False)
    for nic in (mate, evil):
        stage.cleanup(nic.close)
    size, edge = 2 << 30, evil.size
    fd = vhost.memfd(size)
    memory = mmap.mmap(fd, size)
    evil.client.map(edge, size, fd)
    # The block on which it sends is the last one of the small memory, that on which it receives the first one of the large.
    evil.blocks(guest=edge - 64)
    stage.check(evil.command(CREATE) == 0, "it cannot begin")

    def punch():
        vhost.punch(fd, 1 << 20, size - (1 << 20), False)
        vhost.punch(fd, 0, size, True)

    def exchange():
        """The honest end sends, and the other one releases."""
        sent, taken = place(mate, 0)[0], place(evil, 1)[1]
        mate.index(0, (sent + 1) % mate.rings[0][1])
        for at in (4, 0):
            words.put(memory, at, taken)
        time.sleep(0.0005)

    state = {}
    with stage.during(), Beside(punch), Beside(exchange):
        stop = time.monotonic() + 20
        while time.monotonic() < stop:
            state = {name: stage.daemon.port(name)["state"] for name in ("evil", "mate")}
            if any("memory_stalled" in str(it.get("fault")) for it in state.values()):
                break
            # The owner of the memory would not have so many in a row by chance.
            if sum(it["overrun"]["rests"] for it in state.values()) >= 5:
                break
            if state["evil"].get("fault"):
                evil.command(DELETE)
                evil.command(CREATE)
            stage.alive()
            time.sleep(0.02)
    overrun = {name: it["overrun"]["total_us"] for name, it in state.items()}
    stage.notes.update(overrun)
    stage.check(overrun["mate"] == 0, f"the honest sender has an overrun of {overrun['mate']} us")
    stage.check(not state["mate"].get("fault"), f"the honest sender is stopped: {state['mate'].get('fault')}")
    stage.check(sum(overrun.values()) > 0, "the core did not wait: nothing was tried")
    for nic in (mate, evil):
        nic.client.close()
        nic.device.client.close()
    memory.close()
    os.close(fd)


def attached(stage):
    """The program of a pipe's end, when it is let in: the one before may not be quite gone."""
    def come():
        try:
            return ask(stage, stage.at("program.sock"), 1)
        except (OSError, Failure):
            return None
    return until(come, 20, "a program is let in")


def nic_of(stage):
    """The guest of a pipe's end, when it is let in."""
    def come():
        try:
            return Nic(stage.at("guest.sock"))
        except (OSError, vhost.Refused, struct.error):
            return None
    return until(come, 20, "a guest is let in")


@attack()
def pipe_ends_killed(stage):
    """Both ends of a pipe send, release and lie, and are killed at any instant; one of them is a guest's, the other a program's. The next to come finds a pipe that works."""
    stage.start(ports=["guest=ptnet:DIR/guest.sock,pipe=p", "program=ring:DIR/program.sock,pipe=p"])
    rng, kills = random.Random(12), 0

    def guest(come):
        nic = nic_of(stage)
        come()
        chance = random.Random(os.getpid())
        slots = nic.rings[0][1]
        while True:
            for _ in range(chance.randrange(1, 60)):
                at = nic.head
                nic.slot(0, at, chance.choice((2 + at, chance.randrange(1 << 12), 1 << 31)), chance.choice((60, 1514, 1 << 15)),
                         chance.choice((0, 0, 0x20, 0x04, 0x01, 0xFFFF)))
                nic.head = (at + 1) % slots
            nic.index(0, nic.head if chance.random() < 0.98 else chance.randrange(1 << 32))
            nic.index(1, place(nic, 1)[1] % slots)
            # What it received, with other buffers and flags than it got.
            nic.slot(1, chance.randrange(slots), chance.randrange(1 << 12), chance.randrange(1 << 16), chance.randrange(1 << 16))
            nic.client.write(KICKS, 0)
            if chance.random() < 0.05:
                nic.command(DELETE)
                nic.command(CREATE)
                nic.head = place(nic, 0)[0] % slots

    def program(come):
        chance = random.Random(os.getpid())
        client, fds, info = attached(stage)
        come()
        memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
        sends, receives = Ring(memory, info), Ring(memory, info, info["tx_rings"])
        head = words.get(memory, sends.hwcur)
        while True:
            for _ in range(chance.randrange(1, 60)):
                sends.put(head, chance.choice((2 + head, chance.randrange(1 << 12), 1 << 31)), chance.choice((60, 1514, 1 << 15)),
                          chance.choice((0, 0, 0x20, 0x04, 0x01, 0xFFFF)))
                head = (head + 1) % sends.slots
            words.put(memory, sends.head, head if chance.random() < 0.98 else chance.randrange(1 << 32))
            words.put(memory, receives.head, words.get(memory, receives.hwcur + 4))
            receives.put(chance.randrange(receives.slots), chance.randrange(1 << 12), chance.randrange(1 << 16), chance.randrange(1 << 16))
            os.write(fds[1], struct.pack("<Q", 1))

    def child(work):
        """A process that does `work`, and what is readable when it has come, or has ended."""
        here, there = os.pipe()
        pid = os.fork()
        if pid:
            os.close(there)
            return pid, here
        try:
            work(lambda: os.close(there))
        except Exception:
            pass  # it was too early, or is stopped for what it did
        os._exit(0)

    def kill(name):
        pid, here = running.pop(name)
        os.close(here)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def passed():
        return [stage.daemon.port(name)["counters"]["out_frames"] for name in ("guest", "program")]

    running = {}
    with stage.during():
        stop = time.monotonic() + 10 * stage.seconds
        # Longer where it is chance that nothing has passed one of the two ways yet.
        while (now := time.monotonic()) < stop or now < stop + 40 and not all(passed()):
            for name, work in (("guest", guest), ("program", program)):
                if name not in running:
                    running[name] = child(work)
            # A guest that went a moment ago is let in a second later: until then the other end is alone.
            select.select([here for _, here in running.values()], [], [], 2)
            time.sleep(rng.random() ** 3 * 0.5)
            for name in [n for n in running if select.select([running[n][1]], [], [], 0)[0] and rng.random() < 0.7]:
                kill(name)
                kills += 1
            stage.alive()
        for name in list(running):
            kill(name)
    stage.notes.update(kills=kills, passed=passed())
    stage.check(kills > 10 and all(passed()), f"{kills} kills, {passed()} frames passed: nothing was tried")
    until(lambda: all(stage.daemon.port(name)["state"]["peer"] == "waiting" for name in ("guest", "program")), 30, "both have gone")
    client, fds, info = attached(stage)
    nic = nic_of(stage)
    stage.cleanup(nic.close)
    before = stage.daemon.port("program")["counters"]["out_frames"]
    nic.send(vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01"))
    until(lambda: stage.alive() or stage.daemon.port("program")["counters"]["out_frames"] == before + 1, 30, "an honest frame comes")
    client.close()
    nic.client.close()
    nic.device.client.close()
