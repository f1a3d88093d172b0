"""Processes that are killed at any instant, and what keeps descriptors for the next daemon."""

import mmap
import os
import random
import signal
import socket
import struct
import threading
import time

from outside import vfio, vhost
from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import pause
from outside.realtek import BUFFERS, EOR, FS, LS, OWN, Card

HOLD = 0x7363686C << 32


def reap_child(pid, folder):
    try:
        if folder.encode() in open(f"/proc/{pid}/cmdline", "rb").read():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def handed_out(paths):
    """Descriptors that holders give a process of the daemon's own user that asks for all of theirs."""
    found = 0
    for path in paths:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(1)
        try:
            sock.connect(path)
            sock.send(struct.pack("=QQ", HOLD | 3, 0))
            for _ in range(100):
                data, rights, _, _ = sock.recvmsg(16, 64)
                for _, _, raw in rights:
                    for (fd,) in struct.iter_unpack("i", raw[:4]):
                        os.close(fd)
                        found += 1
                if not data or data[:8] == struct.pack("=Q", HOLD | 4):
                    break
        except OSError:
            pass
        finally:
            sock.close()
    return found


@attack(most=True)
def list_a_holder(stage):
    """A process of the daemon's own user asks a holder for another VM's memory, while the daemon is stopped, and when it was killed."""
    stage.start("e1000:DIR/evil.sock", neighbours=False)
    nic = vfio.Nic(stage.at("evil.sock"))  # the other VM
    stage.cleanup(nic.close)
    paths = [os.path.join(folder, f) for folder, _, files in os.walk(stage.daemon.folder) for f in files if f.endswith(".hold")]
    stage.check(paths, "there is no holder: nothing was tried")
    kids = stage.daemon.children()
    stage.cleanup(lambda: [reap_child(kid, stage.daemon.folder) for kid in kids])
    # A holder speaks with one at a time.
    os.kill(stage.daemon.pid, signal.SIGSTOP)
    found = handed_out(paths)
    stage.daemon.process.kill()
    stage.daemon.process.wait()
    found += handed_out(paths)
    stage.check(not found, f"{found} descriptors of another VM were handed out")
    nic.client.close()
    stage.spared.add("end")


@attack(needs=("root",))
def silent_holders(stage):
    """Processes listen in the places of four holders and say nothing, two with a full queue: a start waits for all at once, and an added port holds up no request."""
    names, folder = ("e1", "e2", "e3", "e4"), stage.folder()
    for name in names:
        squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stage.cleanup(squatter.close)
        squatter.bind(f"{folder}/{name}.sock.hold")
        squatter.listen(0 if name in ("e2", "e4") else 8)
        for _ in range(4 if name in ("e2", "e4") else 0):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stage.cleanup(client.close)
            client.setblocking(False)
            try:
                client.connect(f"{folder}/{name}.sock.hold")
            except OSError:
                break
    start = time.monotonic()
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{n}=e1000:{folder}/{n}.sock,switch=evil" for n in names[:3]], ready=120)
    stage.notes["start_s"] = round(time.monotonic() - start, 1)
    # One patience of 10 s; one after the other they were 30.
    stage.judge(stage.notes["start_s"] < 25, f"the start took {stage.notes['start_s']} s")
    with stage.during():
        stage.daemon.name("s", f"{folder}/e4.sock")
        spec = {"name": "e4", "kind": "e1000", "where": f"{folder}/e4.sock", "switch": "evil"}
        adding = threading.Thread(target=lambda: http(stage.daemon.control, "POST", "/v1/ports", spec, timeout=120))
        adding.start()
        answers = 0
        while adding.is_alive():
            pause(0.2)
            stage.daemon.ports(timeout=60)
            answers += adding.is_alive()
        adding.join()
        stage.notes.update(answers=answers)
        stage.check(answers > 1, f"{answers} requests were answered while a port was added")
        stage.daemon.ask("DELETE", "/v1/ports/e4")


def pretend(path, keys, stall, late=0):
    """Listens as the holder at `path`, which has `keys` descriptors, says what they are `late` seconds later, and answers nothing any more after `stall` records of a conversation."""
    with open(path + ".secret", "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(bytes(8))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(8)
    held, callers = socket.socketpair(), []

    def converse(caller):
        heard = 0
        while heard < stall:
            what, key = struct.unpack_from("=QQ", caller.recv(64).ljust(16, b"\0"))
            heard += 1
            pause(late if what == HOLD | 3 else 0)
            for number in range(keys if what == HOLD | 3 else 0):
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", held[0].fileno()))]
                caller.sendmsg([struct.pack("=QQ", HOLD | 5, 1000 + number)], rights)
            caller.send(struct.pack("=QQ", HOLD | 4, key))

    def listen():
        try:
            while True:
                callers.append(listener.accept()[0])
                threading.Thread(target=suppressed, args=(converse, callers[-1]), daemon=True).start()
        except OSError:
            pass

    threading.Thread(target=listen, daemon=True).start()
    return listener


def suppressed(work, *args):
    try:
        work(*args)
    except OSError:
        pass


@attack(needs=("root",))
def holders_that_fall_silent(stage):
    """Holders in the hands of their VMMs hand out what they have, and answer nothing more when they are told to drop it, or say late or never what they have: a start does not wait for the first, and not long for the others."""
    folder = stage.folder()
    names = {"d1": (2, 8), "d2": (2, 8), "d3": (2, 8), "e1": (2, 0), "e2": (2, 0), "e3": (2, 0), "e4": (1, 0), "e5": (1, 0), "e6": (1, 0)}
    for name, (records, late) in names.items():
        stage.cleanup(pretend(f"{folder}/{name}.sock.hold", 100, records, late).close)
    start = time.monotonic()
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{n}=e1000:{folder}/{n}.sock,switch=evil" for n in names], ready=120)
    stage.notes["start_s"] = round(time.monotonic() - start, 1)
    stage.judge(stage.notes["start_s"] < 25, f"the start took {stage.notes['start_s']} s")
    with stage.during():
        pause(1)


@attack()
def kill_a_vmm(stage):
    """VMMs are killed in the middle of their traffic, and come again."""
    stage.start("vhost-user:DIR/evil.sock", ports=["evil1=e1000:DIR/evil1.sock,switch=evil"])
    chance = random.Random(1)
    with stage.during():
        for _ in range(40 if stage.full else 12):
            all_of = [stage.helper("flood", stage.at("evil.sock"), 20, "--sources", 50),
                      stage.helper("storm", stage.at("evil1.sock"), 20, 0x400, 2, 0)]
            pause(chance.uniform(0.02, 0.15))
            for helper in all_of:
                helper.process.kill()
                helper.process.communicate()
            stage.progress("behind a killed VMM")


@attack()
def kill_the_daemon(stage):
    """The daemon is killed under neighbours' traffic, and started again."""
    stage.start(reconnect=True)
    chance, kills = random.Random(2), 0
    for _ in range(10 if stage.full else 4):
        pause(chance.uniform(0.05, 0.3))
        stage.daemon.process.kill()
        stage.daemon.process.wait()
        kills += 1
        if not stage.daemon.start():
            raise Failure(f"it does not start again: {stage.daemon.ending()}")
        got = stage.neighbours.got()
        until(lambda: stage.daemon.alive() and stage.neighbours.got() > got, 15, "neighbours' traffic after a restart")
    stage.first_pid = stage.daemon.pid
    last = stage.neighbours.end()
    flow = last["flows"][0]
    stage.notes.update(kills=kills, frames=flow["got"], doubled=flow["doubled"], lost=flow["lost"])
    stage.check(not flow["altered"], f"{flow['altered']} frames are altered")
    # What the daemon had sent on and not yet given back when it was killed is sent on again: a batch at most.
    stage.check(flow["doubled"] <= 256 * kills, f"{flow['doubled']} frames came twice after {kills} kills")
    stage.check(last["hangups"] <= 4 * kills, f"{last['hangups']} hang-ups after {kills} kills")
    stage.conserved()
    stage.daemon.stop()
    stage.spared.add("end")


@attack()
def cards_whose_daemon_was_killed(stage):
    """The daemon of an e1000 and an rtl8169 is killed in the middle of their traffic; before the next one comes, their VMMs write anything into rings and registers, give pages back, or cut their memory short."""
    stage.start("e1000:DIR/evil.sock", ports=["real=rtl8169:DIR/real.sock,switch=evil", "other=vhost-user:DIR/other.sock,switch=evil"], reconnect=True)
    chance, taken_over, faults = random.Random(14), 0, []
    peer = lambda name: stage.daemon.port(name)["state"]["peer"]
    frame = vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:03", 200)

    def scribble(nic, card, pages):
        for _ in range(2000):
            at = chance.randrange(0, 0x8000, 8)
            nic.memory[at:at + 8] = card.memory[at:at + 8] = chance.randbytes(8)
        for page in pages:
            for _ in range(200):
                at = chance.randrange(0, len(page), 4)
                page[at:at + 4] = chance.randbytes(4)

    def heads(nic, card, pages):
        """Only what a ring's place is told by."""
        for page in pages:
            for register in (vfio.TDH, vfio.TDT, vfio.RDH, vfio.RDT, vfio.TDLEN, vfio.RDLEN, vfio.TDBAL, vfio.RDBAL):
                if register % len(page) + 4 <= len(page):
                    struct.pack_into("<I", page, register % len(page), chance.getrandbits(chance.choice((1, 8, 16, 32))))
        for place in range(1024):
            card.describe(place, chance.getrandbits(64), chance.getrandbits(40))

    def punch(nic, card, pages):
        for fd in (nic.fd, card.fd):
            vhost.punch(fd, 0, 1 << 20, True)

    def cut(nic, card, pages):
        for fd in (nic.fd, card.fd):
            os.ftruncate(fd, chance.choice((0, 4096, 0x4000)))

    for turn in range(12 if stage.full else 6):
        nic, card = vfio.Nic(stage.at("evil.sock"), receive=200), Card(stage.at("real.sock"))
        files = vfio.pages(nic.client)
        pages = [mmap.mmap(fd, os.fstat(fd).st_size) for fd in files]
        flood = stage.helper("flood", stage.at("other.sock"), 20)
        for place in range(512):
            card.memory[BUFFERS:BUFFERS + len(frame)] = frame
            card.describe(place, OWN | FS | LS | len(frame) | (EOR if place == 511 else 0), BUFFERS)
        card.doorbell()
        for _ in range(chance.randrange(50, 400)):
            nic.send(frame)
        stage.daemon.process.kill()
        stage.daemon.process.wait()
        flood.process.kill()
        flood.process.communicate()
        (scribble, heads, punch, cut)[turn % 4](nic, card, pages)
        if not stage.daemon.start():
            raise Failure(f"it does not start again: {stage.daemon.ending()}")
        got = stage.neighbours.got()
        until(lambda: stage.alive() or stage.neighbours.got() > got, 20, "neighbours' traffic after a restart")
        for name in ("evil", "real"):
            state = stage.daemon.port(name)["state"]
            taken_over += state["peer"] != "waiting"
            if state.get("fault"):
                faults.append(str(state["fault"])[:30])
        for each in pages:
            each.close()
        for fd in files:
            os.close(fd)
        for each in (nic, card):
            each.client.close()
            try:
                each.memory.close()
            except BufferError:
                pass
            os.close(each.fd)
        for name in ("evil", "real"):
            until(lambda: stage.alive() or peer(name) == "waiting", 20, f"the end of the former VMM of {name}")
    stage.notes.update(taken_over=taken_over, faults=faults)
    stage.check(taken_over > 0, "no card was taken over: nothing was tried")
    counts = lambda name: stage.daemon.port(name)["counters"]["in_frames"]
    before = counts("evil"), counts("real")
    nic, card = vfio.Nic(stage.at("evil.sock")), Card(stage.at("real.sock"))
    nic.send(frame)
    card.memory[BUFFERS:BUFFERS + len(frame)] = frame
    card.describe(0, OWN | EOR | FS | LS | len(frame), BUFFERS)
    card.doorbell()
    until(lambda: counts("evil") > before[0] and counts("real") > before[1], 10, "a frame of each card's next VMM")
    for each in (nic, card):
        each.close()
    stage.first_pid = stage.daemon.pid
    last = stage.neighbours.end()
    flow = last["flows"][0]
    stage.check(not flow["altered"], f"{flow['altered']} frames are altered")
    stage.conserved()
    stage.daemon.stop()
    stage.spared.add("end")
