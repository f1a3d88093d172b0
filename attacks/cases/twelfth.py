"""What was found on 23 November 2026, later: what clients that have left keep of the daemon's memory, how much of it a routing daemon may have, and what waking a ring client costs."""

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
from outside.fpm import Namespace, attribute, frame, group, next_hop, remove_route, route_by
from outside.flow import pause
from outside.host import four
from outside.ptnet import CREATE, DELETE, GUEST, KICKS, Nic

from .pipes import place
from .seventh import Ring, ask
from .sixth import Connected, vale


def held(files):
    """Bytes of memory that these files have."""
    return sum(512 * os.fstat(fd).st_blocks for fd in files)


@attack("twelfth")
def wake_up_pipe_with_40000_waiters(stage):
    """A ring client's wake-up pipe with 40,000 waiters."""
    stage.start(ports=["evil=ring:DIR/evil.sock,switch=evil", "other=vhost-user:DIR/other.sock,switch=evil"])
    client, fds, info = ask(stage, stage.at("evil.sock"), 1)
    memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
    receives = Ring(memory, info, info["tx_rings"])
    # The memory; a kick for each ring on which it sends; the pipes of those rings, and those of the rings on which it receives.
    stage.crowd(fds[1 + 2 * info["tx_rings"]])
    stop, ticket = threading.Event(), [0]

    def release():  # as a client would that sleeps again at once: each slot is given back, and each time it asks to be woken
        while not stop.is_set():
            receives.give(words.get(memory, receives.hwcur + 4))
            ticket[0] += 1
            words.put(memory, receives.head + 8, ticket[0])
            pause(0.0005)

    with stage.during():
        thread = threading.Thread(target=release)
        thread.start()
        try:
            stage.helper("flood", stage.at("other.sock"), 3 * stage.seconds, "--rate", 20_000).end()
        finally:
            stop.set()
            thread.join()
        state = stage.daemon.port("evil")
        stage.notes.update(interrupts=state["counters"]["interrupts"], overrun=state["state"]["overrun"])
        stage.check(state["counters"]["interrupts"] > 50, "it was hardly woken: nothing was tried")
        stage.check(state["state"]["overrun"]["rests"] > 0, "an I/O core walks all its waiters, each time")
    memory.close()
    client.close()


@attack("twelfth")
def memory_of_ring_clients(stage):
    """Ring clients and monitors come, and leave with the descriptor of their memory, again and again: all of it counts as the daemon's."""
    stage.start(ports=["evil=ring:DIR/evil.sock,switch=evil"])
    kept, each = [], 0
    with stage.during():
        for n in range(60):
            # Attached, or a monitor of what is sent and received.
            client, fds, info = ask(stage, stage.at("evil.sock"), *((1, 0) if n % 3 == 0 else (5, 3)))
            kept.append(fds[0])
            each = max(each, held(fds[:1]))
            client.close()
            stage.alive()
        stage.notes.update(each_kib=each >> 10)
        stage.check(each > 1 << 20, f"a client's memory has {each} bytes: nothing was tried")
        try:
            until(lambda: stage.alive() or held(kept) <= each, 10, "it is given back")
        except Failure:
            stage.check(False, f"{len(kept)} clients that have left keep {held(kept) >> 20} MiB")
    # The next one has a port that works.
    client, fds, info = ask(stage, stage.at("evil.sock"), 1)
    memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
    ring = Ring(memory, info)
    ring.put(0, ring.buffer(0), 60)
    ring.give(1)
    os.write(fds[1], struct.pack("<Q", 1))
    until(lambda: stage.alive() or ring.taken() == 1, 10, "a frame of the next client is taken")
    memory.close()
    client.close()


@attack("twelfth", needs=("root",))
def memory_of_ports_on_demand(stage):
    """A user has ports made at the netmap socket, attaches, and gives each port back with its memory kept: its share of the memory is not all that it has."""
    stage.start(args=["--vale-mode", "0666"])
    for folder in (stage.at(""), stage.at("ring")):
        os.chmod(folder, 0o755)
    user = Connected(1000, stage.at("ring/.netmap"))
    kept, each = [], 0
    with stage.during():
        for n in range(20):
            k = user()
            stage.check(vale(k, 1, f"vale9:k{n}", 256, 1) == 0, "the user gets no port")
            path = until(lambda: found(stage.at("ring"), f"vale9:k{n}"), 20, "the port's socket")
            client, fds, _ = ask(stage, path, 1)
            kept.append(fds[0])
            each = max(each, held(fds[:1]))
            # The port goes first, and its client is still there.
            k.close()
            until(lambda: f"vale9.k{n}" not in stage.daemon.ports(), 10, "the port goes with its user")
            client.close()
        stage.notes.update(each_kib=each >> 10)
        stage.check(each > 256 << 10, f"a port's memory has {each} bytes: nothing was tried")
        try:
            until(lambda: stage.alive() or held(kept) <= each, 10, "it is given back")
        except Failure:
            stage.check(False, f"{len(kept)} ports that are gone keep {held(kept) >> 20} MiB")


def found(folder, name):
    """The socket of the port `name` in `folder`."""
    names = [entry for entry in os.listdir(folder) if entry.startswith(name)]
    return names and os.path.join(folder, names[0])


@attack("twelfth")
def memory_of_vmms_that_left(stage):
    """A ptnet's VMM connects again and again, and keeps the memory of each time."""
    stage.start("ptnet:DIR/evil.sock")
    kept, each, rounds = [], 0, 6
    with stage.during():
        for n in range(rounds):
            nic = Nic(stage.at("evil.sock"))
            fd = os.dup(nic.device.fd)
            stage.cleanup(os.close, fd)
            kept.append(fd)
            each = max(each, held([fd]))
            # What the VMM before had is its own affair.
            stage.check(n == 0 or held(kept[:-1]) == 0, f"after VMM {n}: former ones keep {held(kept[:-1]) >> 10} KiB")
            nic.send(vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01"))
            until(lambda: stage.alive() or stage.daemon.port("evil")["counters"]["in_frames"] == n + 1, 10, "its frame comes")
            nic.close()
            until(lambda: stage.daemon.port("evil")["state"]["peer"] == "waiting", 20, "it has gone")
    stage.notes.update(each_kib=each >> 10)
    stage.check(each > 1 << 20, f"a VMM's memory has {each} bytes: nothing was tried")


@attack("twelfth", needs=("root",))
def hops_of_a_peer(stage):
    """A router's peers have its routing daemon make 2,000 groups of 254 next hops each."""
    space = Namespace(stage)
    stage.start(ports=["up=vhost-user:DIR/up.sock,router=r,address=10.7.0.1/16"], args=("--router", f"r,control={space.name},grace=1"))
    until(lambda: space.link("up"), 20, "the interface of its control plane")
    # The allocator keeps what was freed, and uses it again: rounds do not add up.
    stage.leaves_kib = 320 << 10
    up, daemon = space.link("up"), until(space.connect, 20, "its control plane listens")
    control = lambda: stage.daemon.ask("GET", "/v1/routers")["routers"][0]["control"]
    groups, members = 2000, 254
    before = stage.daemon.usage()["rss_kib"]
    with stage.during():
        daemon.sendall(b"".join(next_hop(1 + n, up, struct.pack(">I", 0x0A070100 + n)) for n in range(members)))
        # The first route is an honest one.
        daemon.sendall(route_by(four("20.0.0.0"), 24, 1))
        for n in range(groups):
            daemon.sendall(group(1000 + n, range(1, 1 + members)) + route_by(struct.pack(">I", 0x15000000 + (n << 8)), 24, 1000 + n))
        until(lambda: control()["routes"] == groups + 1, 60, "they are in force")
        grown = stage.daemon.usage()["rss_kib"] - before
        said = control()
        stage.notes.update(grown_mib=grown >> 10, hops=said.get("hops"), short=said.get("short"))
        stage.check(grown < 320 << 10, f"{groups * members} next hops take {grown >> 10} MiB")
        stage.check(said.get("short", 0) > 0, "there was room for all of them: nothing was tried")
        first = stage.daemon.ask("GET", "/v1/routers/r/explain?to=20.0.0.7", wanted=None)
        stage.notes["honest"] = str(first)[:200]
        # When most of them go the others get their next hops.
        for n in range(1700):
            daemon.sendall(remove_route(struct.pack(">I", 0x15000000 + (n << 8)), 24))
        try:
            until(lambda: control().get("short", 0) == 0, 30, "all ways have their next hops")
        except Failure:
            stage.check(False, f"with room for all, {control().get('short')} ways have no next hops")
    daemon.close()
    until(lambda: control()["routes"] == 0, 60, "they are gone with their daemon")


def nic_of(stage):
    """The guest of a pipe's end, when it is let in."""
    def come():
        try:
            return Nic(stage.at("guest.sock"))
        except (OSError, vhost.Refused, struct.error):
            return None
    return until(come, 20, "a guest is let in")


def attached(stage):
    """The program of a pipe's end, when it is let in: the one before may not be quite gone."""
    def come():
        try:
            return ask(stage, stage.at("program.sock"), 1)
        except (OSError, Failure):
            return None
    return until(come, 20, "a program is let in")


@attack("twelfth")
def pipe_ends_killed(stage):
    """Both ends of a pipe send, release and lie, and are killed at any instant; one of them is a guest's, the other a program's. The next to come finds a pipe that works."""
    stage.start(ports=["guest=ptnet:DIR/guest.sock,pipe=p", "program=ring:DIR/program.sock,pipe=p"])
    rng, kills, wrote = random.Random(12), 0, 0

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
