"""Descriptors that a VMM passes: files that nobody answers for, and kinds that do not belong there."""

import os
import resource
import select
import socket
import struct
import time

from outside import fuse, vfio, vhost
from outside.case import attack
from outside.daemon import doors, until
from outside.inputs import BROADCAST, EVIL, each
from outside.vhost import USER, Guest, Refused

FRAME = vhost.frame(BROADCAST, "02:00:00:00:ee:01")


def table(front, trap):
    """A region of memory, and rings in it."""
    front.hello()
    front.table([(0, 4 << 20, USER, 0)], [trap.file])
    front.sync()


def log(front, trap):
    front.hello(vhost.VERSION_1 | vhost.LOG_ALL)
    front.ask(vhost.SET_LOG_BASE, struct.pack("<QQ", 1 << 20, 0), [trap.file])


def inflight(front, trap):
    front.hello()
    front.send(vhost.SET_INFLIGHT_FD, struct.pack("<QQHH", 1 << 16, 0, 2, 256).ljust(24, b"\0"), [trap.file])
    front.sync()


def kick(front, trap):
    front.hello()
    front.send(vhost.SET_VRING_KICK, struct.pack("<Q", 1), [trap.file])
    front.sync()


def call(front, trap):
    front.hello()
    front.send(vhost.SET_VRING_CALL, struct.pack("<Q", 0), [trap.file])
    front.sync()


def mapped(client, trap):
    client.map(0, 4 << 20, trap.file)


def interrupt(client, trap):
    client.ask(vfio.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 0, 0, 1), [trap.file])


@attack(needs=("root", "fuse"), most=True)
def fuse_messages(stage):
    """Each message that carries a descriptor carries a file whose server never answers: the daemon serves others, deletes the ports, and ends meanwhile."""
    vmms = {"mem": table, "log": log, "inflight": inflight, "kick": kick, "call": call, "map": mapped, "irq": interrupt}
    kind = lambda name: "e1000" if name in ("map", "irq") else "vhost-user"
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{name}{which}={kind(name)}:DIR/{name}{which}.sock,switch=evil" for name in vmms for which in (0, 1)])
    # Of one file the server tells the attributes, and of the other one nothing: not before both are there, as each new process closes what it inherits.
    traps = [fuse.Stalled(4 << 20, silent=False) for _ in range(2)]
    for trap in traps:
        stage.cleanup(trap.close)
    traps[1].silent.value = 1
    ports = {f"{name}{which}": (name, trap) for name in vmms for which, trap in enumerate(traps)}
    with stage.during():
        for port, (name, trap) in ports.items():
            made = vfio.Client if kind(name) == "e1000" else vhost.FrontEnd
            front = made(stage.at(f"{port}.sock"), timeout=1)
            stage.cleanup(front.close)
            try:
                vmms[name](front, trap)
                stage.check(False, f"{port}: a file whose server never answers was taken")
            except (Refused, TimeoutError) as e:
                stage.notes[port] = str(e)
        stage.progress("while foreign files do not answer")
        guest = Guest(stage.at("evil.sock"))
        guest.send(FRAME)
        until(guest.tx.used_index, 30, "another VMM's frame")
        guest.close()
        for port in ports:
            stage.daemon.ask("DELETE", f"/v1/ports/{port}", timeout=30, wanted=None)
        stage.control("after all of them are deleted")
    # The daemon ends while the files still do not answer.
    stage.neighbours.end()
    stage.notes["end_s"] = round(stage.daemon.stop(60), 2)
    stage.check(not stage.neighbours.last()["flows"][0]["lost"], "neighbours' frames are lost")
    stage.spared.add("end")


@attack(needs=("root", "fuse"))
def fuse_again_and_again(stage):
    """VMMs of two ports come again and again, each with a file whose server never answers; nothing piles up, and others are served."""
    stage.start("e1000:DIR/evil.sock", ports=["also=vhost-user:DIR/also.sock,switch=evil", "other=vhost-user:DIR/other.sock,switch=evil"])
    trap = fuse.Stalled(4 << 20)
    stage.cleanup(trap.close)
    before, most, given, said = len(doors(stage.daemon)), 0, 0, set()
    sockets = [vhost.memfd(4096)]
    stage.cleanup(lambda: [os.close(fd) for fd in sockets])
    with stage.during():
        end = time.monotonic() + 2 * stage.seconds
        while time.monotonic() < end:
            for name in ("evil", "also"):
                try:
                    if name == "evil":
                        client = vfio.Client(stage.at("evil.sock"), timeout=0.2)
                        try:
                            for _ in range(8):
                                client.map(0, 4 << 20, trap.file)
                        finally:
                            client.close()
                    else:
                        guest = Guest(stage.at("also.sock"), start=False, timeout=0.2)
                        try:
                            guest.front.table([(0, 4 << 20, USER, 0)], [trap.file])
                            guest.front.sync()
                        finally:
                            guest.close()
                except (Refused, TimeoutError, OSError) as e:
                    said.add(str(e))
                given += 1
            most = max(most, len(doors(stage.daemon)))
        # Another guest's descriptors are received meanwhile.
        other = Guest(stage.at("other.sock"))
        try:
            other.send(FRAME)
            until(other.tx.used_index, 10, "another VMM's frame sent")
        finally:
            other.close()
    stage.notes.update(vmms=given, doors=(before, most), said=sorted(said))
    stage.check(most <= before + 2, f"{most} processes wait for a file of two ports; {before} were there before")
    # As soon as the files are closed both ports let VMMs in again.
    trap.close()

    def let_in(make):
        def tried():
            stage.alive()
            try:
                return make()
            except (Refused, TimeoutError, OSError):
                return None
        return until(tried, 20, "a VMM let in again")

    client = let_in(lambda: vfio.Client(stage.at("evil.sock"), timeout=1))
    client.map(0, 4096, sockets[0])
    client.close()
    let_in(lambda: Guest(stage.at("also.sock"), timeout=1)).close()
    until(lambda: len(doors(stage.daemon)) <= before, 20, "every door but one ended")


@attack()
def odd_descriptors(stage):
    """Every kind of descriptor where another kind belongs."""
    made = []

    def kinds():
        r, w = os.pipe()
        a, b = socket.socketpair()
        made.extend((r, w))
        stage.cleanup(a.close)
        stage.cleanup(b.close)
        poll = select.epoll()
        stage.cleanup(poll.close)
        yield "pipe", r
        yield "socket", a.fileno()
        yield "epoll", poll.fileno()
        for name, path, flags in (("zero", "/dev/zero", os.O_RDWR), ("null", "/dev/null", os.O_RDWR), ("folder", "/", os.O_RDONLY),
                                  ("path", "/", os.O_PATH), ("process", "/proc/self/status", os.O_RDONLY), ("full", "/dev/full", os.O_RDWR),
                                  ("terminals", "/dev/ptmx", os.O_RDWR | os.O_NOCTTY), ("program", "/proc/self/exe", os.O_RDONLY)):
            try:
                fd = os.open(path, flags)
            except OSError:
                continue
            made.append(fd)
            yield name, fd
        fd = vhost.memfd(4096)
        made.append(fd)
        yield "memory", fd
        fd = os.pidfd_open(os.getpid())
        made.append(fd)
        yield "process", fd
        fd = os.eventfd(0)
        made.append(fd)
        yield "eventfd", fd

    stage.cleanup(lambda: [os.close(fd) for fd in made])
    inputs = []
    for kind, fd in kinds():
        def as_kick(g, fd=fd):
            g.front.table([(0, g.size, USER, 0)], [g.fd])
            g.start(1, g.tx, kick=fd)
            g.start(0, g.rx, call=fd)
            g.send(vhost.frame(BROADCAST, EVIL))

        def as_memory(g, fd=fd):
            g.front.table([(0, 4096, USER, 0)], [fd])
            g.start(1, g.tx)

        def as_log(g, fd=fd):
            g.front.sock.settimeout(2)
            g.front.ask(vhost.SET_LOG_BASE, struct.pack("<QQ", 4096, 0), [fd])

        def as_inflight(g, fd=fd):
            g.front.send(vhost.SET_INFLIGHT_FD, struct.pack("<QQHH", 4096, 0, 2, 256).ljust(24, b"\0"), [fd])

        for function in (as_kick, as_memory, as_log, as_inflight):
            function.__name__ = f"{kind}_{function.__name__}"
            inputs.append(function)
    each(stage, inputs)


@attack()
def stranger_storm(stage):
    """A vfio-user client gives a file that is no memory, again and again: each time a door ends, and another is started."""
    stage.start(ports=["g=e1000:DIR/g.sock,switch=evil"])
    door = lambda: stage.daemon.ask("GET", "/v1/daemon")["door"]["started"]
    null, before, begun, refused = os.open("/dev/null", os.O_RDWR), door(), time.monotonic(), 0
    stage.cleanup(os.close, null)
    client = vfio.Client(stage.at("g.sock"))
    with stage.during():
        end = time.monotonic() + max(4, stage.seconds)
        while time.monotonic() < end:
            try:
                client.map(0, 4096, null)
            except vhost.Refused:
                refused += 1
        stage.control("under strangers")
    doors, took = door() - before, time.monotonic() - begun
    stage.notes.update(refused=refused, doors=doors)
    stage.check(refused > 0, "it was not refused")
    stage.check(doors <= 2 * (10 + 3 * took), f"{doors} doors in {took:.1f} s")
    client.close()


@attack(needs=("root",))
def descriptors_under_way(stage):
    """The daemon may own 400 descriptors, and a process of root's user keeps more under way than that: VMMs get in, and their descriptors pass."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        stage.start(ports=["v=vhost-user:DIR/v.sock,switch=evil", "g=e1000:DIR/g.sock,switch=evil"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    end, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            end.close()
            sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            event = os.eventfd(0)
            for _ in range(12):
                vhost.send_fds(sockets[0], b"x", [event] * 253)
            theirs.send(b"y")
            theirs.recv(1)
        finally:
            os._exit(0)
    theirs.close()
    stage.cleanup(end.close)
    with stage.during():
        end.settimeout(10)
        stage.check(end.recv(1) == b"y", "descriptors are not under way")
        guest, client = Guest(stage.at("v.sock")), vfio.Client(stage.at("g.sock"))
        client.map(0, guest.size, guest.fd)
        client.close()
        guest.close()
    end.close()
    os.waitpid(child, 0)
