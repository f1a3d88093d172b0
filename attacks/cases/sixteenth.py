"""What an outside review of the list of points found to be claimed and not tried: every thread and every helper process in an attacker's hands, threads that never come back, and memory that stalls an I/O core again and again."""

import os
import signal
import socket
import struct
import subprocess
import threading
import time

from outside import disk, inject, vfio, vhost
from outside.case import attack
from outside.daemon import Failure, http, until
from outside.fpm import Namespace
from outside.inject import Ended, Process, Thread, ptrace, threads
from outside.vhost import Guest, Refused

from .eleventh import Beside
from .memory import parent, served
from .neighbours import in_new_network
from .seventh import ask
from .worker import AF_UNIX, STREAM, deeds, ready, refused

BROADCAST = "ff:ff:ff:ff:ff:ff"
FRAME = vhost.frame(BROADCAST, "02:00:00:00:ee:01")
MIB = 1 << 20
# What the names of the daemon's threads begin with: each of them has to be there to be tried.
NAMES = ("sidecore", "io-core-", "vu-", "vfu-", "ring-", "netmap", "carriers", "rings", "control r", "core-watch", "capture", "tap ", "packet ")


@attack("sixteenth", needs=("root", "tun"))
def every_thread_turns_hostile(stage):
    """Each thread of a daemon that has one of every kind does what an attacker would do first; each deed has to fail, and is counted."""
    space = Namespace(stage)
    image = disk.image(os.path.join(disk.folder(stage), "image"), 4 * MIB)
    ports = ready(stage) + ["other=vhost-user:DIR/other.sock,switch=evil,prefault=on", "t=tap:sct0,switch=evil",
                            f"disk=blk:DIR/disk.sock,file={image}", "card=rtl8169:DIR/card.sock,switch=evil", "p=ptnet:DIR/p.sock,switch=evil",
                            "host=vhost-user:DIR/host.sock,router=r,address=10.0.0.1/24"]
    daemon = stage.start("vhost-user:DIR/evil.sock", ports=ports, args=("--router", f"r,control={space.name}"), before=in_new_network)
    os.chmod(daemon.folder, 0o777)
    victim = daemon.path("victim")
    open(victim, "w").close()
    os.chmod(victim, 0o666)
    broker = next(daemon.children())
    made = subprocess.run(["nsenter", "-t", str(daemon.pid), "-n", "ip", "link", "add", "scp0", "type", "veth", "peer", "name", "scp1"],
                          capture_output=True, text=True)
    if made.returncode:
        raise Failure(f"no veth: {made.stderr.strip()}")
    daemon.name("i", "scp0")
    daemon.ask("POST", "/v1/ports", {"name": "n", "kind": "packet", "where": "scp0", "switch": "evil"})
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
    stage.check(os.path.exists(victim) and not os.path.exists(daemon.path("was-here")), "files were changed")
    stage.notes.update(threads=len(tried), deeds=done, by_filter=trapped)
    guest.front.close()
    capture.close()


def helpers(daemon):
    """The doors and the holders of this daemon: children of its broker."""
    every = {int(n): parent(n) for n in os.listdir("/proc") if n.isdigit()}
    brokers = [n for n, (of, _) in every.items() if of == daemon.pid]
    found = {}
    for number, (of, words) in every.items():
        for kind in (b"door", b"hold"):
            if of in brokers and kind in words:
                found[kind.decode()] = number
    return found


@attack("sixteenth", needs=("root",))
def helpers_turn_hostile(stage):
    """The processes that receive and keep VMMs' descriptors do what an attacker would do first; each deed has to fail, and ends them where nobody is in the way."""
    daemon = stage.start("e1000:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    nic = vfio.Nic(stage.at("evil.sock"))
    stage.cleanup(nic.close)
    nic.send(FRAME)
    served(stage, "evil")
    # A holder may remove names beside its own socket; elsewhere any other process could.
    elsewhere = disk.folder(stage)
    os.chmod(elsewhere, 0o777)
    victim = os.path.join(elsewhere, "victim")
    open(victim, "w").close()
    os.chmod(victim, 0o666)
    landlock = daemon.ask("GET", "/v1/daemon")["sandbox"]["landlock"]
    needs_landlock = ("remove", "rename")
    with stage.during():
        found = until(lambda: len(helpers(daemon)) == 2 and helpers(daemon), 10, "a door and a holder")
        for kind, number in found.items():
            answers = []
            with Thread(Process(number), number, lives=True) as thread:
                for deed in deeds(elsewhere, os.getpid(), next(daemon.children())):
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
            number = until(lambda: helpers(daemon).get(kind), 10, f"a process {kind}")
            try:
                with Thread(Process(number), number) as thread:
                    result, _ = thread.call(41, AF_UNIX, STREAM, 0)
                stage.check(False, f"{kind}: it goes on, with {result}")
            except Ended:
                pass
            until(lambda: stage.alive() or helpers(daemon).get(kind) != number, 10, f"the end of {kind}")
        # Their daemon and its VMMs go on.
        nic.send(FRAME)
        served(stage, "evil", 2)
        guest = Guest(stage.at("other.sock"))
        guest.send(FRAME)
        until(guest.tx.used_index, 10, "a VMM's frame, whose descriptors another door received")
        guest.close()
    nic.client.close()


class Stuck:
    """A thread of the daemon that is stopped wherever it is, for as long as this is open: nothing in the daemon can wake it."""

    def __init__(self, daemon, start):
        self.tid = until(lambda: next((tid for tid, name in threads(daemon.pid) if name.startswith(start)), None), 10, f"a thread {start}")
        ptrace(inject.SEIZE, self.tid)
        ptrace(inject.INTERRUPT, self.tid)
        os.waitpid(self.tid, inject.WALL)

    def reap(self):
        """Takes note of its end, which its process waits for as long as it is watched."""
        try:
            os.waitpid(self.tid, inject.WALL | os.WNOHANG)
        except ChildProcessError:
            pass

    def release(self):
        try:
            ptrace(inject.DETACH, self.tid)
        except OSError:
            self.reap()


@attack("sixteenth", needs=("root",))
def threads_that_hang(stage):
    """Conversations stop wherever they are, as in a call that no signal ends: a request that deletes their port, others beside it, and the daemon's end wait for none of them."""
    daemon = stage.start("vhost-user:DIR/evil.sock", ports=["card=e1000:DIR/card.sock,switch=evil", "r=ring:DIR/r.sock,switch=evil",
                                                            "more=vhost-user:DIR/more.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"))
    stage.cleanup(guest.close)
    nic = vfio.Nic(stage.at("card.sock"))
    stage.cleanup(nic.close)
    client, _, _ = ask(stage, stage.at("r.sock"), 1)
    stuck = {}
    stage.cleanup(lambda: [each.release() for each in stuck.values()])
    said = {}
    with stage.during():
        for name, start in (("evil", "vu-evil"), ("card", "vfu-card"), ("r", "ring-r")):
            stuck[name] = Stuck(daemon, start)

            def delete():
                try:
                    said[name] = http(daemon.control, "DELETE", f"/v1/ports/{name}", timeout=30)[0]
                except OSError as e:
                    said[name] = str(e)

            begun = time.monotonic()
            thread = threading.Thread(target=delete)
            thread.start()
            answers = 0
            while thread.is_alive() and time.monotonic() < begun + 20:
                daemon.ask("GET", "/v1/daemon")
                answers += name not in said
            thread.join()
            stage.notes[name] = [said[name], answers, round(time.monotonic() - begun, 1)]
            stage.check(isinstance(said[name], int), f"DELETE of {name} whose thread hangs: {said[name]}")
            stage.check(answers > 0, f"no other request was answered while {name} was deleted")
            stage.check(name not in daemon.ports(), f"{name} is still there")
        # What is deleted comes back once its thread goes on.
        stuck.pop("evil").release()
        until(lambda: stage.alive() or not any(name.startswith("vu-evil") for _, name in threads(daemon.pid)), 20, "the end of a thread that goes on")
        stage.progress("beside threads that hang")
        stuck["more"] = Stuck(daemon, "vu-more")
    stage.neighbours.end()
    # Not even the I/O core comes back.
    stuck["core"] = Stuck(daemon, "io-core-")
    begun = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    while daemon.process.poll() is None and time.monotonic() < begun + 30:
        for each in stuck.values():
            each.reap()
        time.sleep(0.02)
    took = time.monotonic() - begun
    stage.notes["end_s"] = round(took, 1)
    stage.check(daemon.process.poll() == 1, f"SIGTERM beside threads that hang: {daemon.ending()}")
    line = daemon.log("without waiting for")
    stage.check(line and "vu-more" in line[-1], f"what it did not wait for is not named: {line}")
    stage.check(not stage.neighbours.last()["flows"][0]["lost"], "neighbours' frames are lost")
    stage.check(took < 15, f"SIGTERM took {took:.1f} s")
    stage.spared.add("end")


@attack("sixteenth", needs=("root",))
def memory_that_stalls(stage):
    """A VMM punches out the memory that its frames lie in, again and again, so that an I/O core waits for each punch: its port is stopped by name, and stays so, and nobody else is."""
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])

    def punch(fd, size):
        """How long the hole takes."""
        vhost.punch(fd, 2 * MIB, size - 2 * MIB, False)
        begun = time.monotonic()
        vhost.punch(fd, 2 * MIB, size - 2 * MIB, True)
        return time.monotonic() - begun

    # On a quick machine the hole has to be larger: a port whose overruns are below 0.05 s in a second does not rest.
    size, memory = 768 * MIB, vhost.memfd(0)
    stage.cleanup(os.close, memory)
    while punch(memory, size) < 0.25 and size < 3072 * MIB:
        size *= 2
    stage.notes["mib"] = size // MIB
    guest = Guest(stage.at("evil.sock"), size=size)
    stage.cleanup(guest.close)

    sent, state = 0, {}
    with stage.during(), Beside(lambda: punch(guest.fd, size), stage.cpus):
        end = time.monotonic() + 240
        while time.monotonic() < end:
            # One frame after the other, each in another page of what is being punched.
            for _ in range(32):
                if guest.tx.next - guest.tx.used_index() & 0xFFFF >= guest.tx.size - 1:
                    time.sleep(0.002)  # the core stands still
                    continue
                slot = guest.tx.next % guest.tx.size
                guest.tx.put(slot, 2 * MIB + sent * 7919 * 4096 % (size - 4 * MIB), 100)
                guest.tx.offer(slot)
                guest.tx.ring()
                sent += 1
                time.sleep(0.0005)
            state = stage.daemon.port("evil")["state"]
            if state.get("fault"):
                break
    rests = state["overrun"]["rests"]
    stage.notes.update(sent=sent, overrun=state["overrun"])
    stage.check("memory_stalled" in str(state.get("fault")), f"after {rests} rests it has the fault {state.get('fault')}")
    stage.check(rests >= 8, f"{rests} rests are counted")
    guest.front.close()
    # Its VMM calls again, and is not let in; others are.
    again = None
    try:
        again = Guest(stage.at("evil.sock"), start=False, timeout=3)
        stage.check(False, "its VMM was let in again at once")
    except (Refused, TimeoutError, OSError):
        pass
    finally:
        if again:
            again.close()
    other = Guest(stage.at("other.sock"))
    other.send(FRAME)
    until(lambda: stage.alive() or other.tx.used_index(), 10, "another VMM's frame")
    other.close()
    stage.check(not stage.daemon.port("other")["state"].get("fault"), "another port is stopped for it")


@attack("sixteenth")
def messages_that_stop(stage):
    """VMMs stop in the middle of a message's head or of its body, and go on waiting: their port is free for the next one."""
    stage.start(ports=["v=vhost-user:DIR/v.sock,switch=evil", "g=e1000:DIR/g.sock,switch=evil"])
    number = struct.pack("<III", vhost.SET_VRING_NUM, 1, 8) + struct.pack("<II", 0, 256)
    info = struct.pack("<HHIIIIIII", 2, vfio.GET_INFO, 32, 0, 0, 16, 0, 0, 0)
    with stage.during():
        for name, message, head in (("v", number, 12), ("g", info, 16)):
            for end in (1, head - 1, head, len(message) - 1):
                guest = Guest(stage.at("v.sock")) if name == "v" else None
                client = guest.front if guest else vfio.Client(stage.at("g.sock"))
                client.sock.settimeout(20)
                client.sock.sendall(message[:end])
                try:
                    stage.check(client.sock.recv(1) == b"", f"{name}: {end} bytes of a message were answered")
                except ConnectionResetError:
                    pass
                except TimeoutError:
                    raise Failure(f"{name}: a VMM that stops behind {end} bytes of a message keeps its port") from None
                (guest or client).close()
        guest = Guest(stage.at("v.sock"))
        guest.send(FRAME)
        until(guest.tx.used_index, 10, "an honest VMM's frame")
        guest.close()
        vfio.Client(stage.at("g.sock")).close()
