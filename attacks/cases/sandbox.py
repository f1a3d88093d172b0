"""The daemon and its helpers turn hostile: what a thread may do that an attacker has taken over."""

import os
import platform
import signal
import socket
import struct
import subprocess

from outside import disk, vfio, vhost
from outside.case import attack
from outside.daemon import Daemon, Failure, helpers, until
from outside.deeds import AF_INET, AF_PACKET, AF_UNIX, DATAGRAM, FATAL, HERE, RAW, STREAM, deeds
from outside.inject import Ended, Process, Thread, threads
from outside.namespaces import Namespace, in_new_network
from outside.vhost import Guest

MIB = 1 << 20
# What the names of the daemon's threads begin with: each of them has to be there to be tried.
NAMES = ("sidecore", "io-core-", "vu-", "vfu-", "ring-", "netmap", "carriers", "groups", "rings", "control r", "core-watch", "capture", "tap ", "packet ")
BROADCAST = "ff:ff:ff:ff:ff:ff"
FRAME = vhost.frame(BROADCAST, "02:00:00:00:ee:01")
# Threads of each kind, by how their names begin. They have four filters: of io-core, conversation, helper and control.
KINDS = (("io-core-", "io-core"), ("vu-", "vhost-user"), ("vfu-", "vfio-user"), ("ring-", "ring"), ("netmap", "netmap"),
         ("carriers", "watch"), ("sidecore", "control"))


def ready(stage):
    if platform.machine() != "x86_64":
        raise Failure("it knows the system calls of x86-64")
    return ["evil1=e1000:DIR/evil1.sock,switch=evil", "evil2=ring:DIR/evil2.sock,switch=evil"]


def refused(daemon):
    answer = daemon.ask("GET", "/v1/daemon")
    return {(r["threads"], r["call"]): r["count"] for r in answer["sandbox"]["refused"]}


@attack(needs=("root", "tun"))
def every_thread_turns_hostile(stage):
    """Each thread of a daemon that has one of every kind does what an attacker would do first; each deed has to fail, and is counted."""
    space = Namespace(stage)
    image = disk.image(os.path.join(stage.folder(), "image"), 4 * MIB)
    ports = ready(stage) + ["other=vhost-user:DIR/other.sock,switch=evil,prefault=on", "t=tap:sct0,switch=evil",
                            f"disk=blk:DIR/disk.sock,file={image}", "card=rtl8169:DIR/card.sock,switch=evil", "p=ptnet:DIR/p.sock,switch=evil",
                            "host=vhost-user:DIR/host.sock,router=r,address=10.0.0.1/24"]
    daemon = stage.start("vhost-user:DIR/evil.sock", ports=ports, args=("--router", f"r,control={space.name}"), before=in_new_network)
    os.chmod(daemon.folder, 0o777)
    victim = daemon.path("victim")
    open(victim, "w").close()
    os.chmod(victim, 0o666)
    broker = daemon.children()[0]
    made = subprocess.run(["nsenter", "-t", str(daemon.pid), "-n", "ip", "link", "add", "scp0", "type", "veth", "peer", "name", "scp1"],
                          capture_output=True, text=True)
    if made.returncode:
        raise Failure(f"no veth: {made.stderr.strip()}")
    daemon.name("i", "scp0")
    daemon.ask("POST", "/v1/ports", {"name": "n", "kind": "packet", "where": "scp0", "switch": "evil"})
    daemon.ask("POST", "/v1/groups", {"name": "g"})
    capture = socket.socket(AF_UNIX)
    stage.cleanup(capture.close)
    capture.connect(daemon.control)
    capture.sendall(b"GET /v1/capture/evil HTTP/1.1\r\nhost: x\r\n\r\n")
    service = socket.socket(AF_UNIX)
    stage.cleanup(service.close)
    name = b"\0sidecore-attack-%d" % os.getpid()
    service.bind(name)
    service.listen()
    guest, other = Guest(stage.at("evil.sock"), receive=128), Guest(stage.at("other.sock"))
    stage.cleanup(guest.close)
    stage.cleanup(other.close)
    missing = lambda: [start for start in NAMES if not any(name.startswith(start) for _, name in threads(daemon.pid))]
    until(lambda: not missing(), 20, "a thread of each name")
    until(lambda: daemon.port("other")["state"]["memory"]["populated_bytes"], 20, "memory that a thread has filled beforehand")
    stage.used_before = daemon.usage()
    tried, done, trapped = {}, 0, 0
    with stage.during():
        for tid, called in list(threads(daemon.pid)):
            # One of several that do the same is enough.
            if tried.get(called, 0) >= 2:
                continue
            before, answers = refused(daemon), []
            try:
                with Thread(daemon, tid) as thread:
                    for deed in deeds(daemon.folder, os.getpid(), broker):
                        answers.append((deed[0], *thread.call(*deed[1:])))
                    answers.append(("memory that runs, by mprotect", *thread.call(10, thread.data & ~4095, 4096, 7)))
                    made, _ = thread.call(41, AF_UNIX, STREAM, 0)
                    if made >= 0:
                        address = struct.pack("H", AF_UNIX) + name
                        answers.append(("call a service of the host", *thread.call(42, made, address, len(address))))
                        thread.call(3, made)
            except (OSError, Ended):
                stage.alive()  # a thread that ends by itself
                continue
            stage.alive()
            tried[called] = tried.get(called, 0) + 1
            for what, result, _ in answers:
                stage.check(result < 0, f"{called}: {what}: done, with {result}")
            here = sum(t for *_, t in answers)
            counted = sum(refused(daemon).values()) - sum(before.values())
            stage.check(counted >= here, f"{called}: {here} calls were refused, {counted} are counted")
            stage.check(here > 20, f"{called}: the filter refused no more than {here} of {len(answers)}")
            done, trapped = done + len(answers), trapped + here
    untried = [start for start in NAMES if not any(called.startswith(start) for called in tried)]
    stage.check(not untried, f"no thread was tried of {untried}")
    until(lambda: daemon.log("refused by the sandbox"), 10, "a line in the log")
    stage.check(os.path.exists(victim) and not os.path.exists(daemon.path("was-here")), "files were changed")
    stage.notes.update(threads=len(tried), deeds=done, by_filter=trapped)
    guest.front.close()
    capture.close()


@attack(needs=("root",), most=True)
def helpers_turn_hostile(stage):
    """The processes that receive and keep VMMs' descriptors do what an attacker would do first; each deed has to fail, and ends them where nobody is in the way."""
    daemon = stage.start("e1000:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    nic = vfio.Nic(stage.at("evil.sock"))
    stage.cleanup(nic.close)
    nic.send(FRAME)
    stage.served("evil")
    # A holder may remove names beside its own socket; elsewhere any other process could.
    elsewhere = stage.folder()
    os.chmod(elsewhere, 0o777)
    victim = os.path.join(elsewhere, "victim")
    open(victim, "w").close()
    os.chmod(victim, 0o666)
    landlock = daemon.ask("GET", "/v1/daemon")["sandbox"]["landlock"]
    needs_landlock = ("remove", "rename")
    there = lambda: {kind: number for number, kind in helpers(daemon).items() if kind}
    with stage.during():
        found = until(lambda: len(there()) == 2 and there(), 10, "a door and a holder")
        for kind, number in found.items():
            answers = []
            with Thread(Process(number), number, lives=True) as thread:
                for deed in deeds(elsewhere, os.getpid(), daemon.children()[0]):
                    if landlock or deed[0] not in needs_landlock:
                        answers.append((deed[0], *thread.call(*deed[1:])))
                answers.append(("memory that runs, by mprotect", *thread.call(10, thread.data & ~4095, 4096, 7)))
                answers.append(("a socket of the host's", *thread.call(41, AF_UNIX, STREAM, 0)))
                answers.append(("an io_uring", *thread.call(425, 4, bytes(120))))
            for what, result, _ in answers:
                stage.check(result < 0, f"{kind}: {what}: done, with {result}")
            stage.notes[kind] = [len(answers), sum(t for *_, t in answers)]
        stage.check(os.path.exists(victim) and os.listdir(elsewhere) == ["victim"], f"files were changed: {os.listdir(elsewhere)}")
        # They go on: a door lets a VMM in, a holder keeps what it has.
        guest = Guest(stage.at("other.sock"))
        guest.send(FRAME)
        until(guest.tx.used_index, 10, "another VMM's frame is taken")
        guest.close()
        # And where nobody takes the signal from them, the first such call is their end.
        for kind in ("door", "hold"):
            number = until(lambda: there().get(kind), 10, f"a process {kind}")
            try:
                with Thread(Process(number), number) as thread:
                    result, _ = thread.call(41, AF_UNIX, STREAM, 0)
                stage.check(False, f"{kind}: it goes on, with {result}")
            except Ended:
                pass
            until(lambda: stage.alive() or there().get(kind) != number, 10, f"the end of {kind}")
        # Their daemon and its VMMs go on.
        nic.send(FRAME)
        stage.served("evil", 2)
        guest = Guest(stage.at("other.sock"))
        guest.send(FRAME)
        until(guest.tx.used_index, 10, "a VMM's frame, whose descriptors another door received")
        guest.close()
    nic.client.close()


def one_of_each(daemon):
    """A thread of each kind: its number, and the kind's name."""
    found = {}
    for tid, name in threads(daemon.pid):
        for start, kind in KINDS:
            if name.startswith(start):
                found.setdefault(kind, tid)
    # A thread takes its name by itself.
    return found if len(found) == len(KINDS) else None


@attack(needs=("root",))
def hostile_worker_that_ends(stage):
    """Calls that only an attacker makes, by a thread of each kind in turn: each has to end the daemon, by SIGSYS."""
    ports = ready(stage)
    stage.start(neighbours=False)
    for i, (name, number, *arguments) in enumerate(FATAL):
        daemon = Daemon(stage.options.binary, [stage.core], ["evil=vhost-user:DIR/evil.sock", *ports], ["evil"])
        try:
            if not daemon.is_ready:
                raise Failure(f"it does not start: {daemon.ending()}")
            kinds = until(lambda: one_of_each(daemon), 10, "a thread of each kind")
            kind = KINDS[i % len(KINDS)][1]
            try:
                with Thread(daemon, kinds[kind]) as thread:
                    result, _ = thread.call(number, *arguments)
                stage.check(False, f"{kind}: {name}: it goes on, with {result}")
                continue
            except Ended:
                pass
            until(lambda: not daemon.alive(), 10, f"the end of the daemon by {name}")
            code = daemon.process.returncode
            stage.check(code == -signal.SIGSYS, f"{kind}: {name}: ended with {code}")
        finally:
            daemon.remove()
    stage.notes.update(calls=len(FATAL))


@attack(needs=("root",), most=True)
def hostile_ring(stage):
    """A conversation, whose interrupts go through rings, makes one without restrictions, and has that do what it may not."""
    daemon = stage.start("vhost-user:DIR/evil.sock", ports=ready(stage), neighbours=False)
    tid = until(lambda: one_of_each(daemon), 10, "a thread of each kind")["vhost-user"]
    tries = (
        ("read a file of root's", struct.pack("<BBHiQQII", 18, 0, 0, HERE, 0, 0, 0, os.O_RDONLY), b"/etc/shadow\0"),
        ("make a file", struct.pack("<BBHiQQII", 18, 0, 0, HERE, 0, 0, 0o600, os.O_CREAT | os.O_WRONLY), b"/tmp/was-here\0"),
        ("a UDP socket", struct.pack("<BBHiQQII", 45, 0, 0, AF_INET, DATAGRAM, 0, 0, 0), None),
        ("a packet socket", struct.pack("<BBHiQQII", 45, 0, 0, AF_PACKET, RAW, 0, 0x300, 0), None),
    )
    made = []
    with Thread(daemon, tid) as thread:
        memory, _ = thread.call(9, 0, 8192, 3, 0x22, -1, 0)
        parameters = bytearray(120)
        struct.pack_into("<I", parameters, 8, 1 << 14)  # IORING_SETUP_NO_MMAP: the rings are in our memory
        struct.pack_into("<Q", parameters, 72, memory)
        struct.pack_into("<Q", parameters, 112, memory + 4096)
        at = thread.put(bytes(parameters))
        ring, _ = thread.call(425, 4, at)
        if ring >= 0:
            filled = thread.read(at, 120)
            _, sq_tail, _, _, _, _, array = struct.unpack_from("<7I", filled, 40)
            cq_head, cq_tail, cq_mask, _, _, cqes = struct.unpack_from("<6I", filled, 80)
            word = lambda offset: struct.unpack("<I", thread.read(memory + 4096 + offset, 4))[0]
            for what, entry, path in tries:
                entry = bytearray(entry + bytes(32))
                if path:
                    struct.pack_into("<Q", entry, 16, thread.put(path))
                thread.write(memory, bytes(entry))
                tail = word(sq_tail)
                thread.write(memory + 4096 + array + 4 * (tail & 3), struct.pack("<I", 0))
                thread.write(memory + 4096 + sq_tail, struct.pack("<I", tail + 1))
                thread.call(426, ring, 1, 1, 1, 0, 0)
                result = struct.unpack_from("<i", thread.read(memory + 4096 + cqes + 16 * (word(cq_head) & word(cq_mask)), 16), 8)[0]
                thread.write(memory + 4096 + cq_head, struct.pack("<I", word(cq_tail)))
                if result >= 0:
                    made.append(what)
                    thread.call(3, result)
            thread.call(3, ring)
        thread.call(11, memory, 8192)
    stage.check(not made, f"a ring without restrictions did: {', '.join(made)}")
    stage.notes.update(ring=ring)
