"""An I/O core's time: who it looks at, for how long, and who is charged."""

import mmap
import os
import signal
import struct
import threading
import time

from outside import vhost
from outside.case import attack
from outside.daemon import until
from outside.flow import Neighbours, pause
from outside.ring import Ring, again, ask
from outside.vhost import Guest, Queue, frame, memfd

MIB = 1 << 20
B = "02:00:00:00:aa:02"
EVIL = "02:00:00:00:ee:01"


@attack()
def dropped_slots(stage):
    """A ring client gives up 4,094 slots at once, all of which are dropped: their headers ask for what cannot be."""
    stage.start(ports=["evil=ring:DIR/evil.sock,switch=evil,slots=4096"])
    client, fds, info = ask(stage, stage.at("evil.sock"), 1)
    again(stage, client, 3, 12)  # a virtio-net header in front of each frame
    memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
    ring = Ring(memory, info)
    more, frames = 0x20, (ring.slots - 2) // 2  # NS_MOREFRAG: a frame's header is in a slot of its own
    header = ring.buffer(0)
    at = info["buffers"] + header * info["buf_size"]
    memory[at:at + 2] = b"\1\x4d"
    with stage.during():
        for i in range(0, 2 * frames, 2):
            body = ring.buffer(i + 1)
            ring.put(i, header, 12, more)
            ring.put(i + 1, body, 60)
        ring.give(2 * frames)
        for fd in fds[1:]:
            try:
                os.write(fd, struct.pack("<Q", 1))
            except OSError:
                pass  # the end from which wake-ups are read
        until(lambda: stage.alive() or ring.taken() == 2 * frames, 20, "the daemon takes the slots")
        count = stage.daemon.port("evil")["counters"]
        stage.notes.update(batches=count["batches"], drops=count["drops"])
        stage.check(sum(count["drops"].values()) == frames, f"{count['drops']} instead of {frames} drops: nothing was tried")
        # A batch has 256 frames at most, whatever becomes of them.
        stage.check(count["batches"] >= frames // 256, f"{frames} frames were dropped in {count['batches']} batches: no bound in number ends one")
    client.close()


@attack()
def naps_of_monitors(stage):
    """One user monitors 64 pipes of 16 ring ports, whose rings see a frame each now and then: I/O cores look at 256 of them each 50 us."""
    ports, rings, pipes = 16, [], (b"p0", b"p1", b"p2", b"p3")
    stage.start(ports=[f"r{i}=ring:DIR/r{i}.sock,switch=evil" for i in range(ports)])
    clients = []
    for i in range(ports):
        path = stage.at(f"r{i}.sock")
        for pipe in pipes:
            client, fds, info = ask(stage, path, 4, 1, pipe)
            clients.append(client)
            memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
            for number in range(4):
                ring = Ring(memory, info, number)
                for slot in range(ring.slots):
                    ring.put(slot, ring.buffer(slot), 60)
                rings.append(ring)
    stop = threading.Event()
    # A core that never comes to the end of its looks is late all the time: 20 to 50 ms were seen, where a machine that does nothing
    # else has less than one. On others the control tells what is usual, and a moment in which they were busier is no verdict.
    p99 = lambda name, none: (stage.phases[name] or {}).get("p99_us") or none
    least = lambda parts: min(p99(f"looks {part}", 1e9) for part in range(parts))
    most = lambda: max(5_000, 4 * p99("control", 0))

    def seldom():
        while not stop.wait(0.004):
            for ring in rings:
                ring.give(ring.taken() + 1)

    thread = threading.Thread(target=seldom)
    thread.start()
    try:
        # What is usual here: these programs without a reader.
        stage.measure("control", 1)
        for i in range(ports):
            for pipe in pipes:
                for sees in (3, 7):  # what its first end sends and receives; the same when it was released
                    clients.append(ask(stage, stage.at(f"r{i}.sock"), 5, sees | 1 << 8, pipe)[0])
        with stage.during():
            # On a machine that does more it takes some tries until a moment is undisturbed.
            for part in range(12 if stage.full else 1):
                stage.measure(f"looks {part}", max(stage.seconds / 3, 0.7))
                if part >= 2 and least(part + 1) <= most():
                    break
            stage.progress("while pipes are monitored")
            seen = stage.notes["seen"] = sum(ring.taken() > 0 for ring in rings)
    finally:
        stop.set()
        thread.join()
    stage.notes["parts"] = part + 1
    stage.judge(least(part + 1) <= most(), f"p99 of a neighbour's ping was {least(part + 1) / 1000:.0f} ms, and {most() / 4000:.1f} without monitors, or less")
    stage.check(seen, "no ring was followed: nothing was tried")
    for client in clients:
        client.close()
    # What monitors and pipes had goes with them, descriptors of ours included.
    rings.clear()
    until(lambda: all("open ends of pipes: 0" in p["state"]["detail"] or "open ends" not in p["state"]["detail"]
                      for n, p in stage.daemon.ports().items() if n.startswith("r")), 20, "all pipes are closed")


class Time:
    """Time of the I/O core, and what of it ports were charged for."""

    def __init__(self, stage):
        self.stage, self.before = stage, None
        self.before = self.read()

    def read(self):
        daemon = self.stage.daemon
        ports = {name: port["state"]["service"]["busy_ns"] for name, port in daemon.ports(timeout=30).items()}
        return sum(core["busy_ns"] for core in daemon.ask("GET", "/v1/cores", timeout=30)["cores"]), ports

    def check(self):
        """Next to all of the time in which the core moved something is some port's."""
        busy, ports = self.read()
        busy -= self.before[0]
        charged = sum(now - self.before[1].get(name, 0) for name, now in ports.items())
        part = round(1 - charged / max(busy, 1), 2)
        self.stage.notes.update(busy_s=round(busy / 1e9, 2), uncharged=max(part, self.stage.notes.get("uncharged", 0)))
        # Rounds, reports, letters: a tenth, and a fifth where frames are few.
        self.stage.judge(part <= 0.35, f"{100 * part:.0f} % of {busy / 1e9:.2f} s of the I/O core are charged to nobody")


@attack(needs=("root",))
def queues_with_nothing(stage):
    """A guest with 16 queues has one frame there at any time, and three more with 16 queues send next to nothing: looks at all of these are paid by others."""
    idle = [f"i{n}" for n in range(3)]
    names = ("victim", "evil", *idle)
    stage.start(neighbours=False, ports=[f"{n}=vhost-user:DIR/{n}.sock,switch={'n' if n == 'victim' else 'evil'}" for n in names])
    stage.undisturbed()
    seconds, at = 1, stage.at

    def share(mode):
        time_of = Time(stage)
        helper = stage.helper("share", at("victim.sock"), at("evil.sock"), mode, seconds, *(at(f"{n}.sock") for n in idle))
        os.sched_setscheduler(helper.process.pid, os.SCHED_RR, os.sched_param(1))
        got = helper.end()
        until(lambda: all(p["state"]["peer"] != "connected" for p in stage.daemon.ports().values()), 10, "all VMMs have left")
        stage.notes[mode] = {k: round(got[k] / got["seconds"] / 1e6, 2) for k in ("victim", "evil")}
        return got["victim"] / got["seconds"], time_of

    flood, _ = share("flood")
    with stage.during():
        one, time_of = share("one")
        time_of.check()
    # Beside a flood it has its half; beside four others a fifth is due to it, of time. An eighth was seen.
    stage.judge(one >= 0.34 * flood, f"the victim has {one / 1e6:.1f} Mpps, and {flood / 1e6:.1f} where the other one floods")


@attack()
def stopped_daemon(stage):
    """The daemon is stopped and goes on, again and again, in the middle of whatever it does: that is no neighbour's fault."""
    stage.start()
    process = stage.daemon.pid
    with stage.during():
        end = time.monotonic() + max(stage.seconds, 3)
        while time.monotonic() < end:
            os.kill(process, signal.SIGSTOP)
            pause(0.03)  # shorter than after what neighbours give a frame up
            os.kill(process, signal.SIGCONT)
            pause(0.003)
    overrun = {name: stage.daemon.port(name)["state"]["overrun"] for name in "ab"}
    stage.notes["overrun"] = overrun
    stage.check(not any(it["rests"] for it in overrun.values()), f"a neighbour has to rest for it: {overrun}")


@attack(needs=("root",))
def looks_that_wait(stage):
    """A VMM gives its available ring's pages back while the I/O core looks at them between two visits: a neighbour must not pay for it."""
    size = 384 * MIB
    stage.start("vhost-user:DIR/evil.sock", beside=True, ping=False)
    fd = memfd(size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, receive=0, start=False)
    stage.cleanup(guest.close)
    guest.tx = tx = Queue(guest.memory, 512 << 10, 256)
    tx.used, tx.avail = 768 << 10, 2 * MIB  # of all that, only the available ring is given back
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    data = b"\0" * 12 + frame("02:00:00:00:00:99", "02:00:00:00:ee:01")
    guest.memory[MIB:MIB + len(data)] = data
    for slot in range(256):
        tx.put(slot, MIB, len(data))

    def send(count):
        tx.offer(*range(count))
        tx.ring()
        until(lambda: stage.alive() or tx.used_index() == tx.next & 0xFFFF, 30, "frames are taken")

    # Its index is 0 again, as that of a ring that was given back, and the last frames came singly: it is looked at.
    while tx.next % 65536 != 65536 - 128:
        send(min(256, 65536 - 128 - tx.next % 65536))
    for _ in range(128):
        send(1)
    stage.undisturbed()
    busy = lambda name: stage.daemon.port(name)["state"]["service"]["busy_ns"] / 1e9
    overrun = lambda name: stage.daemon.port(name)["state"]["overrun"]["total_us"]
    before = {name: (busy(name), overrun(name)) for name in ("a", "evil")}
    took = 0
    with stage.during():
        for _ in range(24 if stage.full else 10):
            vhost.punch(fd, 2 * MIB, size - 3 * MIB, False)
            tx.ring()
            time.sleep(0.003)  # it is looked at by now, and will be in the next moment
            start = time.monotonic()
            vhost.punch(fd, 2 * MIB, size - 3 * MIB, True)
            took += time.monotonic() - start
            if stage.daemon.port("evil")["state"].get("fault"):
                break
    spent = {name: (busy(name) - before[name][0], overrun(name) - before[name][1]) for name in before}
    stage.notes.update(punched_s=round(took, 1), overrun_us={name: n for name, (_, n) in spent.items()},
                       charged_s={name: round(s, 2) for name, (s, _) in spent.items()})
    stage.check(spent["a"][1] == 0, "an overrun was counted at an honest neighbour")
    stage.judge(spent["evil"][0] > took / 10 or took < 0.5, f"of {took:.1f} s of waiting it was charged for {spent['evil'][0]:.2f}")
    guest.close()


@attack()
def visit_of_1024_segments(stage):
    """256 frames that are cut into a thousand segments each, beside a port that takes them."""
    stage.start("vhost-user:DIR/evil.sock", ports=["x=vhost-user:DIR/x.sock,switch=evil", "y=vhost-user:DIR/y.sock,switch=evil"])
    sink = Neighbours(stage.daemon, stage.cpus, flow=None, ping=("x", "y"))
    stage.cleanup(sink.kill)
    with stage.during():
        flood = stage.helper("flood", stage.at("evil.sock"), stage.seconds, "--to", B, "--from", EVIL, "--bytes", 65000, "--gso", 64)
        stage.notes["sent"] = flood.end()["sent"]
    sink.kill()
