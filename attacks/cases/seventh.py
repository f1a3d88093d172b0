"""What guests, netmap programs and VMMs do to an I/O core's time: work that no port is charged for, and visits that nothing bounds."""

import mmap
import os
import socket
import struct
import subprocess
import threading
import time

from outside import vhost, words
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import pause
from outside.vfio import RCTL, RDH, RDT, TDH, TDT, Nic
from outside.vhost import Guest

from .sixth import HUGE, huge_file

# Microseconds for a few huge pages, however long one takes to be cleared; those of a whole attack take longer.
A_FEW = 4000


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
        self.stage.check(part <= 0.35, f"{100 * part:.0f} % of {busy / 1e9:.2f} s of the I/O core are charged to nobody")


def undisturbed(stage):
    """Other programs do not take the I/O core's processor: what they took would be charged to the port that was just served."""
    for thread in os.listdir(f"/proc/{stage.daemon.pid}/task"):
        if open(f"/proc/{stage.daemon.pid}/task/{thread}/comm").read().startswith("io-core"):
            os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))


@attack("seventh", needs=("root",))
def dropped_frames(stage):
    """Frames that are dropped as soon as they are read: each begins in a huge page of its own that was never touched."""
    count, first = 120, 8
    size = (first + count + 2) * HUGE
    stage.start("vhost-user:DIR/evil.sock")
    fd = huge_file(stage, size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, start=False)
    stage.cleanup(guest.close)
    tx, header = guest.tx, 4 * HUGE
    # An offload that was not negotiated: a checksum to be made.
    guest.memory[header:header + 12] = b"\1\1" + b"\0" * 10
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    with stage.during():
        for slot in range(count):
            vhost.punch(fd, (first + slot) * HUGE, HUGE, True)
            tx.put(2 * slot, header, 12, vhost.NEXT, 2 * slot + 1)
            tx.put(2 * slot + 1, (first + slot) * HUGE, 60)
        tx.offer(*range(0, 2 * count, 2))
        tx.ring()
        until(lambda: stage.alive() or tx.used_index() == tx.next, 60, "the daemon takes the frames")
        port = stage.daemon.port("evil")
        batches, slow = port["counters"]["batches"], port["state"]["slow"]
        stage.notes.update(slow=slow, batches=batches, drops=port["counters"]["drops"])
        stage.check(not port["state"].get("fault"), f"port evil: {port['state'].get('fault')}")
        stage.check(sum(port["counters"]["drops"].values()) == count, "not all frames were dropped: nothing was tried")
        # Without a bound all are read at once.
        bounded = batches >= 30 or 2 * slow["longest_us"] <= slow["total_us"]
        stage.check(bounded, f"{count} frames were dropped in {batches} batches, the longest of {slow['longest_us'] // 1000} ms: no bound in time ends it")
    guest.front.close()


def in_huge_pieces(guest, table, first, count, lengths, flags):
    """An indirect table of pieces, each at the beginning of a huge page of its own."""
    for i in range(count):
        last = i == count - 1
        at = (first + i) * HUGE + 64 * (i % 64)
        struct.pack_into("<QIHH", guest.memory, table + 16 * i, at, lengths[last], flags | (0 if last else vhost.NEXT), i + 1)


@attack("seventh", needs=("root",))
def heads_of_huge_pieces(stage):
    """The first 76 bytes of each of four frames lie in 76 huge pages that were never touched."""
    count, each, first = 4, 76, 8
    size = (first + count * each + 1) * HUGE
    stage.start("vhost-user:DIR/evil.sock")
    fd = huge_file(stage, size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, features=vhost.VERSION_1 | vhost.INDIRECT, start=False)
    stage.cleanup(guest.close)
    for slot in range(count):
        in_huge_pieces(guest, 4 * HUGE + 4096 * slot, first + slot * each, each, (1, 1), 0)
        guest.tx.put(slot, 4 * HUGE + 4096 * slot, 16 * each, vhost.INDIRECT_FLAG)
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, guest.tx)
    guest.front.sync()
    with stage.during():
        guest.tx.offer(*range(count))
        guest.tx.ring()
        until(lambda: stage.alive() or guest.tx.used_index() == guest.tx.next, 60, "the daemon takes the frames")
        port = stage.daemon.port("evil")
        slow = port["state"]["slow"]
        stage.notes.update(slow=slow, batches=port["counters"]["batches"])
        bounded = 2 * slow["longest_us"] <= slow["total_us"] or slow["longest_us"] <= A_FEW
        stage.check(bounded, f"{count} frames were one visit of {slow['longest_us'] // 1000} ms: the clock is not read between their pieces")
    guest.front.close()


@attack("seventh", needs=("root",))
def dropped_packets(stage):
    """An e1000's packets ask to be cut without a word about their headers: each begins in a huge page of its own that was never touched."""
    count, first = 100, 8
    size = (first + count + 2) * HUGE
    stage.start("e1000:DIR/evil.sock")
    fd = huge_file(stage, size)
    nic = Nic(stage.at("evil.sock"), size, fd=fd)
    stage.cleanup(nic.close)
    with stage.during():
        for slot in range(count):
            vhost.punch(fd, (first + slot) * HUGE, HUGE, True)
            # 60 bytes, EOP, RS; DEXT, a data descriptor, TSE (8254x SDM 3.3.7)
            word = 60 | 1 << 24 | 1 << 27 | 1 << 29 | 1 << 20 | 1 << 26
            struct.pack_into("<QQ", nic.memory, nic.tx_ring + 16 * slot, (first + slot) * HUGE, word)
        nic.client.write(TDT, count)
        until(lambda: stage.alive() or nic.client.read(TDH) == count, 60, "the daemon takes the packets")
        port = stage.daemon.port("evil")
        batches, slow = port["counters"]["batches"], port["state"]["slow"]
        stage.notes.update(slow=slow, batches=batches, drops=port["counters"]["drops"])
        stage.check(sum(port["counters"]["drops"].values()) == count, "not all packets were dropped: nothing was tried")
        bounded = batches >= 25 or 2 * slow["longest_us"] <= slow["total_us"]
        stage.check(bounded, f"{count} packets were dropped in {batches} batches, the longest of {slow['longest_us'] // 1000} ms: no bound in time ends it")
    nic.client.close()


@attack("seventh", needs=("root",))
def looped_packets(stage):
    """An e1000 in loopback receives what it sends, each packet into a huge page of its own that was never touched."""
    count, first = 100, 8
    size = (first + count + 2) * HUGE
    stage.start("e1000:DIR/evil.sock")
    fd = huge_file(stage, size)
    nic = Nic(stage.at("evil.sock"), size, fd=fd, receive=1)
    stage.cleanup(nic.close)
    write = nic.client.write
    write(RCTL, 0)
    for slot in range(count):
        struct.pack_into("<QQ", nic.memory, nic.rx_ring + 16 * slot, (first + slot) * HUGE, 0)
    write(RDH, 0)
    write(RDT, count)
    write(RCTL, 0x2 | 0x8 | 0x10 | 0x40 | 0x8000)  # enable, promiscuous, loopback, broadcasts
    frame = vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01")
    nic.memory[nic.out:nic.out + len(frame)] = frame
    with stage.during():
        for slot in range(count):
            vhost.punch(fd, (first + slot) * HUGE, HUGE, True)
            struct.pack_into("<QQ", nic.memory, nic.tx_ring + 16 * slot, nic.out, 60 | 1 << 24 | 1 << 27)
        write(TDT, count - 1)
        until(lambda: stage.alive() or nic.client.read(TDH) == count - 1, 60, "the daemon takes the packets")
        slow, received = stage.daemon.port("evil")["state"]["slow"], nic.client.read(RDH)
        stage.notes.update(slow=slow, received=received)
        stage.check(received > 0, "nothing was received: nothing was tried")
        # With a bound a visit ends after a few packets, and is no slow one, or one of many. All packets take longer than A_FEW.
        bounded = 2 * slow["longest_us"] <= slow["total_us"] or slow["longest_us"] <= A_FEW
        stage.check(bounded, f"{slow['longest_us'] // 1000} of {slow['total_us'] // 1000} ms were one visit: no bound in time ends it")
    nic.client.close()


def ask(stage, path, what, value=0, pipe=b""):
    """A request at a ring port's socket, by a client of its own: its socket, descriptors, and what the answer says."""
    client = socket.socket(socket.AF_UNIX)
    stage.cleanup(client.close)
    client.settimeout(8)
    client.connect(path)
    return client, *again(stage, client, what, value, pipe)


def again(stage, client, what, value=0, pipe=b""):
    """A further request of a client."""
    client.sendall((b"ring" + struct.pack("<III", 3, what, value) + pipe.ljust(64, b"\0")).ljust(128, b"\0"))
    data, rights, _, _ = client.recvmsg(128, socket.CMSG_SPACE(4 * 64))
    fds = [fd for _, _, raw in rights for (fd,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4])]
    for fd in fds:
        stage.cleanup(os.close, fd)
    while len(data) < 128:
        data += client.recv(128 - len(data)) or b"\xff" * 128
    error, ring_size = struct.unpack_from("<II", data, 8)
    if error:
        raise Failure(f"a ring client's request {what}: {os.strerror(error)}")
    longs = dict(zip(("memsize", "total", "words", "rings", "buffers", "interface"), struct.unpack_from("<6Q", data, 16)))
    numbers = dict(zip(("bufs", "buf_size", "extra", "tx_rings", "rx_rings", "slots"), struct.unpack_from("<6I", data, 64)))
    return fds, {"ring_size": ring_size, **longs, **numbers}


class Ring:
    """A ring on which a client sends: its slots, and the index by which it gives them up."""

    def __init__(self, memory, info, number=0):
        self.memory, self.slots = memory, info["slots"]
        self.slot = info["rings"] + number * info["ring_size"] + 256  # struct netmap_ring has its slots there
        self.head, self.hwcur = (info["words"] + 256 * number + at for at in (0, 128))

    def put(self, index, buffer, length, flags=0):
        struct.pack_into("<IHH", self.memory, self.slot + 16 * (index % self.slots), buffer, length, flags)

    def buffer(self, index):
        return struct.unpack_from("<I", self.memory, self.slot + 16 * (index % self.slots))[0]

    def taken(self):
        return words.get(self.memory, self.hwcur)

    def give(self, index):
        words.put(self.memory, self.head, index % self.slots)


@attack("seventh")
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


@attack("seventh")
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
        # The same programs do the same beside the same machine, without a reader.
        stage.measure("control", 1)
        for i in range(ports):
            for pipe in pipes:
                for sees in (3, 7):  # what its first end sends and receives; the same when it was released
                    clients.append(ask(stage, stage.at(f"r{i}.sock"), 5, sees | 1 << 8, pipe)[0])
        with stage.during():
            # On a machine that does more it takes some tries until a moment is undisturbed.
            for part in range(12):
                stage.measure(f"looks {part}", max(stage.seconds / 3, 0.7))
                if part >= 2 and least(part + 1) <= most():
                    break
            stage.progress("while pipes are monitored")
            seen = stage.notes["seen"] = sum(ring.taken() > 0 for ring in rings)
    finally:
        stop.set()
        thread.join()
    stage.notes["parts"] = part + 1
    stage.check(least(part + 1) <= most(), f"p99 of a neighbour's ping was {least(part + 1) / 1000:.0f} ms, and {most() / 4000:.1f} without monitors, or less")
    stage.check(seen, "no ring was followed: nothing was tried")
    for client in clients:
        client.close()
    # What monitors and pipes had goes with them, descriptors of ours included.
    rings.clear()
    until(lambda: all("open ends of pipes: 0" in p["state"]["detail"] or "open ends" not in p["state"]["detail"]
                      for n, p in stage.daemon.ports().items() if n.startswith("r")), 20, "all pipes are closed")


@attack("seventh", needs=("root",))
def queues_with_nothing(stage):
    """A guest with 16 queues has one frame there at any time, and three more with 16 queues send next to nothing: looks at all of these are paid by others."""
    idle = [f"i{n}" for n in range(3)]
    names = ("victim", "evil", *idle)
    stage.start(neighbours=False, ports=[f"{n}=vhost-user:DIR/{n}.sock,switch={'n' if n == 'victim' else 'evil'}" for n in names])
    undisturbed(stage)
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
    stage.check(one >= 0.34 * flood, f"the victim has {one / 1e6:.1f} Mpps, and {flood / 1e6:.1f} where the other one floods")


@attack("seventh")
def names_of_processes(stage):
    """A VMM's process has a name that a terminal obeys, and one that looks like further lines; the operator runs `sidecore place`."""
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during():
        for name in (b"\x1b[2J\x1b]0;x\x07", b"x\nwrong: none"):
            ready, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    vhost.libc.prctl(15, name, 0, 0, 0)  # PR_SET_NAME
                    front = vhost.FrontEnd(stage.at("evil.sock"))
                    front.hello()
                    front.sync()
                    os.write(told, b"x")
                    time.sleep(30)
                finally:
                    os._exit(0)
            os.close(told)
            stage.cleanup(os.close, ready)
            try:
                stage.check(os.read(ready, 1) == b"x", "the VMM does not connect")
                said = subprocess.run([stage.options.binary, "place", "--socket", stage.daemon.control], capture_output=True, timeout=20)
                text = said.stdout.decode(errors="replace")
                stage.check(f"process {pid}" in text, "the VMM is not found: nothing was tried")
                stage.check(not [c for c in text if ord(c) < 32 and c != "\n"], f"what it prints is obeyed by a terminal: {text[-200:]!r}")
                stage.check("\nwrong: none" not in text, f"a process draws lines of its own: {text[-200:]!r}")
            finally:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            until(lambda: stage.daemon.port("evil")["state"]["peer"] != "connected", 20, "the VMM has left")
