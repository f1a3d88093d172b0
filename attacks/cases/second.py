"""What a second attack found, by programs that were written against the engine as it was after the first."""

import json
import os
import socket
import struct
import time

from outside import vfio, vhost
from outside.case import attack
from outside.daemon import until
from outside.flow import pause

VICTIM, THIEF, SENDER = "02:00:00:00:aa:11", "02:00:00:00:ee:01", "02:00:00:00:bb:05"
BROADCAST = "ff:ff:ff:ff:ff:ff"
KIND = 0x9999


def ring_ask(code, value=0, pipe=b"x", extra=0):
    return (b"ring" + struct.pack("<III", 3, code, value) + pipe.ljust(64, b"\0") + struct.pack("<II", extra, 0)).ljust(128, b"\0")


def connect(path, timeout=5):
    k = socket.socket(socket.AF_UNIX)
    k.settimeout(timeout)
    k.connect(path)
    return k


def ring_answer(k):
    """The error number of an answer, whose descriptors are closed."""
    data, rights, _, _ = k.recvmsg(128, socket.CMSG_SPACE(4 * 64))
    for _, _, raw in rights:
        for (fd,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4]):
            os.close(fd)
    return struct.unpack_from("<I", data, 8)[0] if len(data) == 128 else None


def vale(k, verb, name, slots=0, rings=0):
    """A request at the netmap socket; its error number."""
    k.sendall(struct.pack("<4sIII", b"vale", 1, verb, 0) + name.encode().ljust(64, b"\0")
              + struct.pack("<7I", slots, slots, rings, rings, 0, 0, 0) + b"\0" * 20)
    data = b""
    while len(data) < 512:
        more = k.recv(512 - len(data))
        if not more:
            return None
        data += more
    return struct.unpack_from("<I", data, 8)[0]


class Receiver:
    """A guest that counts the frames which are for an address."""

    def __init__(self, guest, mac):
        self.guest, self.mac, self.got, self.seen = guest, vhost.mac(mac), 0, guest.rx.used_index()

    def drain(self):
        rx, memory = self.guest.rx, self.guest.memory
        until_now = rx.used_index()
        while self.seen != until_now:
            head = struct.unpack_from("<I", memory, rx.used + 4 + 8 * (self.seen % rx.size))[0] % rx.size
            at, = struct.unpack_from("<Q", memory, rx.desc + 16 * head)
            frame = bytes(memory[at + 12:at + 26])
            self.got += frame[:6] == self.mac and frame[12:14] == KIND.to_bytes(2, "big")
            rx.offer(head)
            self.seen = self.seen + 1 & 0xFFFF


def three(stage):
    stage.start(ports=[f"{n}=vhost-user:DIR/{n}.sock,switch=evil" for n in ("v", "e", "s")])
    guests = [vhost.Guest(stage.at(f"{n}.sock"), receive=200) for n in ("v", "e", "s")]
    for guest in guests:
        stage.cleanup(guest.close)
    return guests


def contest(v, e, s, seconds, victim=True):
    """Victim and thief send from one address by turns, a third one to it: frames sent, and what each of the two got of them."""
    receivers = [Receiver(g, VICTIM) for g in (v, e)]
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if victim:
            v.send(vhost.frame(SENDER, VICTIM, kind=0x8888))
        time.sleep(0.004)
        e.send(vhost.frame(THIEF, VICTIM, kind=0x7777))
        time.sleep(0.004)
        s.send(vhost.frame(VICTIM, SENDER, kind=KIND))
        sent += 1
        for receiver in receivers:
            receiver.drain()
    pause(0.1)
    for receiver in receivers:
        receiver.drain()
    return sent, receivers[0].got, receivers[1].got


@attack("second")
def held_address(stage):
    """A thief that was heard first claims a neighbour's address a hundred times a second, so that it is held there."""
    v, e, s = three(stage)
    with stage.during():
        e.send(vhost.frame(BROADCAST, VICTIM))
        pause(0.05)
        contest(v, e, s, 1)
        stage.notes["sent, victim got, thief got"] = sent, got, _ = contest(v, e, s, 2)
        stage.check(got >= sent * 0.9, f"the owner, which sends all the time, got {got} of {sent} frames for it")
    for guest in (v, e, s):
        guest.front.close()


@attack("second")
def held_address_after_restart(stage):
    """The same, where the victim was first and its guest restarts once."""
    v, e, s = three(stage)
    with stage.during():
        v.send(vhost.frame(BROADCAST, VICTIM))
        pause(0.1)
        contest(v, e, s, 1)
        for enable in (0, 1):
            for ring in (0, 1):
                v.front.state(vhost.SET_VRING_ENABLE, ring, enable)
            v.front.sync()
            contest(v, e, s, 1, victim=bool(enable))
        stage.notes["sent, victim got, thief got"] = sent, got, _ = contest(v, e, s, 2)
        stage.check(got >= sent * 0.9, f"after a restart the owner got {got} of {sent} frames for it")
    for guest in (v, e, s):
        guest.front.close()


@attack("second")
def colluding_ports(stage):
    """Seven ports forge sources, so that no bucket of the MAC table has two entries of one of them; a neighbour is silent."""
    count, first = 7, vhost.mac("02:00:00:00:bb:02")
    names = [f"e{i}" for i in range(count)]
    stage.start(ports=[f"{n}=vhost-user:DIR/{n}.sock,switch=evil" for n in (*names, "p", "q", "third")], neighbours=False)
    q, third, p = (vhost.Guest(stage.at(f"{n}.sock"), receive=200) for n in ("q", "third", "p"))
    evil = [vhost.Guest(stage.at(f"{n}.sock"), ring=256) for n in names]
    for guest in (q, third, p, *evil):
        stage.cleanup(guest.close)
    for guest in evil:
        guest.source = 0
        for k in range(256):
            guest.tx.put(k, guest.out + 128 * k, 72)
            guest.memory[guest.out + 128 * k:guest.out + 128 * k + 72] = b"\0" * 12 + vhost.frame(THIEF, THIEF)

    def burst(guest, number):
        if (guest.tx.next - guest.tx.used_index()) & 0xFFFF > 100:
            return
        for _ in range(100):
            k = guest.tx.next % 256
            guest.source += 1
            at = guest.out + 128 * k + 18
            guest.memory[at:at + 6] = b"\x02" + bytes([0x60 + number]) + struct.pack(">I", guest.source)
            struct.pack_into("<H", guest.memory, guest.tx.avail + 4 + 2 * k, k)
            guest.tx.next = guest.tx.next + 1 & 0xFFFF
        guest.tx.index(guest.tx.next)
        guest.tx.ring()

    # Heard once; from now on it only receives.
    q.send(vhost.frame(BROADCAST, "02:00:00:00:bb:02"))
    pause(0.1)
    leak, got = Receiver(third, "02:00:00:00:bb:02"), Receiver(q, "02:00:00:00:bb:02")
    with stage.during():
        end = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < end:
            for number, guest in enumerate(evil):
                burst(guest, number)
            if (p.tx.next - p.tx.used_index()) & 0xFFFF < 100:
                p.send(vhost.frame("02:00:00:00:bb:02", "02:00:00:00:bb:01", kind=KIND))
            leak.drain()
            got.drain()
        stage.notes.update(forged=sum(g.source for g in evil), neighbour=got.got, third=leak.got)
        stage.check(got.got > 0, "the neighbour got nothing")
        stage.check(leak.got <= 10, f"{leak.got} frames for a neighbour that is up were flooded")
    for guest in (q, third, p, *evil):
        guest.front.close()


@attack("second")
def mtu_of_a_vmm(stage):
    """A VMM asks for a larger MTU than its port was given."""
    stage.start(ports=["e=vhost-user:DIR/e.sock,switch=evil,mtu=1500"])
    protocol = vhost.P_REPLY_ACK | vhost.P_MTU | 1
    with stage.during():
        for mtu in (9000, 1501, 65535):
            e = vhost.Guest(stage.at("e.sock"), protocol=protocol)
            try:
                stage.notes[f"answer to {mtu}"] = e.front.acked(20, struct.pack("<Q", mtu))
            except OSError as error:
                stage.notes[f"answer to {mtu}"] = str(error)
            shown = stage.daemon.port("e")["state"]["mtu"]
            stage.check(shown == 1500, f"after NET_SET_MTU {mtu} the port's MTU is {shown}")
            e.close()


@attack("second")
def pipe_ends(stage):
    """A client opens one end of one pipe again and again, each time by another connection."""
    stage.start(ports=["r=ring:DIR/r.sock,switch=evil", "late=vhost-user:DIR/late.sock,switch=evil"])
    most = 1500 if stage.full else 300
    connections = []
    stage.cleanup(lambda: [k.close() for k in connections])
    with stage.during():
        opened = 0
        for _ in range(most):
            k = connect(stage.at("r.sock"))
            k.sendall(ring_ask(4, 1))
            opened += ring_answer(k) == 0
            connections.append(k)
        stage.notes["open ends"] = opened
        stage.check(0 < opened <= 64, f"{opened} ends of one pipe were opened")
        stage.control("with all of them")
        guest = vhost.Guest(stage.at("late.sock"))
        guest.front.sync()
        guest.close()
        for k in connections:
            k.close()


def as_user(user, function):
    """Runs `function` as another user, in a process of its own; what it returned, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            text = str(function())
        except BaseException as error:  # noqa: BLE001 (a child tells its parent whatever it was)
            text = repr(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as end:
        text = end.read()
    os.waitpid(child, 0)
    return text


@attack("second", needs=("root",))
def netmap_user_parts_neighbours(stage):
    """Another user, who may have ports made, parts the neighbours' ports from their switch."""
    stage.start(args=["--vale-mode", "0666"])
    for folder in (stage.at(""), stage.at("ring")):
        os.chmod(folder, 0o755)

    def requests():
        k = connect(stage.at("ring/.netmap"))
        return [vale(k, verb, name) for verb, name in ((6, "valen:a"), (5, "valeevil:b"), (4, "a"), (5, "valen:lo"))]

    with stage.during():
        stage.notes["errors"] = answers = as_user(65534, requests)
        stage.check(answers.startswith("[") and "0" not in answers.strip("[]").split(", "), f"not all was refused: {answers}")
        stage.progress("after the requests")


@attack("second", needs=("root",))
def netmap_user_memory(stage):
    """Another user asks for as large ports as there are."""
    stage.start(args=["--vale-mode", "0666"])
    for folder in (stage.at(""), stage.at("ring")):
        os.chmod(folder, 0o755)

    def requests():
        k = connect(stage.at("ring/.netmap"))
        return [vale(k, 1, f"vale9:x{i}", 4096, 16) for i in range(4)]

    with stage.during():
        stage.notes["errors"] = answers = as_user(65534, requests)
        made = answers.strip("[]").split(", ").count("0")
        stage.check(answers.startswith("[") and made <= 1, f"{made} ports of 1.3 GiB with their monitors: {answers}")


@attack("second")
def log_flood(stage):
    """VMMs and clients do what is logged, as fast as they can."""
    stage.start(ports=["g=e1000:DIR/g.sock,switch=evil", "v=vhost-user:DIR/v.sock,switch=evil", "r=ring:DIR/r.sock,switch=evil"])
    lines = stage.daemon.lines

    def rate(name, act):
        before, rounds, end = len(lines), 0, time.monotonic() + stage.seconds
        while time.monotonic() < end:
            act()
            rounds += 1
        pause(0.2)
        stage.notes[name] = f"{len(lines) - before} lines of {rounds} rounds"
        stage.check(len(lines) - before <= 100, f"{name}: {len(lines) - before} lines in {stage.seconds:.0f} s")

    with stage.during():
        v = vhost.Guest(stage.at("v.sock"), start=False)
        v.front.table([(0, v.size, vhost.USER, 0)], [v.fd])
        v.start(1, v.tx)
        at = [0]

        def addresses():
            for _ in range(32):
                at[0] ^= 4096
                v.front.send(vhost.SET_VRING_ADDR, struct.pack("<IIQQQQ", 1, 0, 0x1000 + at[0], 0x2000, 0x3000, 0))
            v.front.sync()

        rate("rings that cannot run", addresses)
        v.close()

        def junk():
            k = connect(stage.at("r.sock"), 2)
            k.sendall(b"junk" * 32)
            try:
                k.recv(200)
            except OSError:
                pass
            k.close()

        rate("junk from a ring client", junk)

        def attach():
            k = connect(stage.at("r.sock"), 2)
            k.sendall(ring_ask(1))
            ring_answer(k)
            k.close()

        rate("ring clients that come and go", attach)
        c = vfio.Client(stage.at("g.sock"))

        def refused():
            try:
                c.unmap(0x5000, 0x1000)
            except vhost.Refused:
                pass

        rate("refused vfio-user commands", refused)
        c.close()


@attack("second")
def empty_descriptors(stage):
    """Frames of 14 bytes whose indirect tables have 255 descriptors of no length behind them."""
    stage.start(ports=["e=vhost-user:DIR/e.sock,switch=evil"])
    guest = vhost.Guest(stage.at("e.sock"), features=vhost.VERSION_1 | vhost.INDIRECT, size=48 << 20, start=False, ring=8192)
    stage.cleanup(guest.close)
    q, size = guest.tx, guest.tx.size
    frame = b"\0" * 12 + vhost.frame(THIEF, THIEF, 14)
    guest.memory[8 << 20:(8 << 20) + len(frame)] = frame
    table = b"".join(struct.pack("<QIHH", 8 << 20, 0 if k else 26, 1 if k < 255 else 0, (k + 1) % 256) for k in range(256))
    for i in range(size):
        struct.pack_into("<H", guest.memory, q.avail + 4 + 2 * i, i)
        at = (16 << 20) + i % 4096 * 4096
        guest.memory[at:at + 4096] = table
        q.put(i, at, 4096, vhost.INDIRECT_FLAG)
    guest.front.table([(0, guest.size, vhost.USER, 0)], [guest.fd])
    guest.start(0, guest.rx)
    guest.start(1, q)
    guest.front.sync()
    before = stage.daemon.port("e")["counters"]
    with stage.during():
        end = time.monotonic() + stage.seconds
        while time.monotonic() < end:
            q.index(q.used_index() + size)
            q.ring()
    after = stage.daemon.port("e")["counters"]
    frames, batches = (after[name] - before[name] for name in ("in_frames", "batches"))
    stage.notes.update(frames=frames, batches=batches)
    stage.check(frames > 0, "nothing was sent")
    stage.check(frames <= 20 * batches, f"{frames / max(batches, 1):.0f} frames of 256 descriptors a batch")
    guest.front.close()


def lingering(seconds=3600):
    """A TCP socket whose last close waits, and what keeps it so."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    client = socket.socket()
    client.connect(listener.getsockname())
    peer, _ = listener.accept()
    client.setblocking(False)
    try:
        while True:
            client.send(b"x" * 65536)
    except BlockingIOError:
        pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    return client, (peer, listener)


@attack("second")
def linger(stage):
    """TCP sockets whose close waits an hour come along with messages to each socket."""
    ports = ["r=ring:DIR/r.sock,switch=evil", "v=vhost-user:DIR/v.sock,switch=evil", "g=e1000:DIR/g.sock,switch=evil"]
    stage.start(ports=ports, args=["--vale-mode", "0666"])
    kept = []
    stage.cleanup(lambda: [k.close() for k in kept])

    def give(path, data):
        client, others = lingering()
        kept.extend(others)
        k = connect(path)
        try:
            vhost.send_fds(k, data, [client.fileno()])
        except OSError as error:
            stage.notes.setdefault("refused", []).append(f"{os.path.basename(path)}: {error.strerror}")
            # It is ours alone then.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        kept.append(k)
        pause(0.2)

    with stage.during():
        give(stage.at("ring/.netmap"), b"x" * 64)
        stage.check(vale(connect(stage.at("ring/.netmap")), 2, "") is not None, "the netmap socket answers nobody")
        give(stage.at("r.sock"), b"x" * 64)
        k = connect(stage.at("r.sock"))
        k.sendall(ring_ask(2))
        stage.check(ring_answer(k) == 0, "the ring port answers nobody")
        k.close()
        give(stage.at("v.sock"), struct.pack("<III", 1, 1, 0))
        give(stage.at("g.sock"), struct.pack("<HHIII", 1, 1, 20, 0, 0) + b"\0\1\0\0")
        stage.control("with sockets that linger")


@attack("second")
def texts_of_a_vmm(stage):
    """A vfio-user client's VERSION has texts that a terminal obeys where numbers belong."""
    stage.start("e1000:DIR/evil.sock")
    odd = "\x7f\x80\x9b31m\x9f\u202a\u202e\u2066\u2069\u200b\u2028\ufeff"
    times = 0
    with stage.during():
        for text in (odd, odd * 100, "x" * 3000):
            c = vfio.Client(stage.at("evil.sock"), version=False)
            caps = json.dumps({"capabilities": {"max_msg_fds": text}}, ensure_ascii=False).encode() + b"\0"
            try:
                c.ask(vfio.VERSION, struct.pack("<HH", 0, 1) + caps)
            except vhost.Refused:
                pass
            c.close()
            times += 1
            until(lambda: len(stage.daemon.log("max_msg_fds")) == times, 20, "its fault in the log")
            said = until(lambda: stage.daemon.port("evil")["state"]["detail"].partition("last fault: ")[2], 20, "its fault")
            stage.check("max_msg_fds" in said and len(said) <= 4096, f"{len(said)} characters: {said[:200]!r}")
            for where, lines in (("show", [said]), ("the log", stage.daemon.lines)):
                bad = {hex(ord(ch)) for line in lines for ch in line if not ch.isprintable()}
                stage.check(not bad, f"in {where}: {bad}")


@attack("second")
def silent_clients(stage):
    """Clients connect to ports of both protocols and say nothing; the VMMs that come 10 s later are served."""
    stage.start(ports=["v=vhost-user:DIR/v.sock,switch=evil", "g=e1000:DIR/g.sock,switch=evil"])
    with stage.during():
        quiet = [connect(stage.at(f"{n}.sock"), 20) for n in "vg"]
        for k in quiet:
            try:
                stage.check(k.recv(1) == b"", "it was answered")
            except TimeoutError:
                stage.check(False, "a client that says nothing keeps its port")
            k.close()
        for n in "vg":
            until(lambda: stage.conversation(n)["silent"] == 1, 20, f"a silent client counted at port {n}")
            until(lambda: "last fault: no_" in stage.daemon.port(n)["state"]["detail"], 20, f"a word about it at port {n}")
        vhost.Guest(stage.at("v.sock")).close()
        vfio.Client(stage.at("g.sock")).close()


@attack("second")
def resample_for_ever(stage):
    """Eventfds that stay readable tell the ends of an e1000's interrupts: a semaphore, and the interrupt's own."""
    stage.start("e1000:DIR/evil.sock")
    trigger, unmask = 4 | 32, 4 | 16

    def reads():
        """System calls that read, by the port's thread."""
        for task in os.listdir(f"/proc/{stage.daemon.pid}/task"):
            if open(f"/proc/{stage.daemon.pid}/task/{task}/comm").read().strip() == "vfu-evil":
                lines = open(f"/proc/{stage.daemon.pid}/task/{task}/io").read().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("syscr"))

    with stage.during():
        for semaphore in (True, False):
            nic = vfio.Nic(stage.at("evil.sock"))
            event = os.eventfd(0, (os.EFD_SEMAPHORE if semaphore else 0) | os.EFD_NONBLOCK)
            if not semaphore:
                nic.client.ask(vfio.SET_IRQS, struct.pack("<5I", 20, trigger, 0, 0, 1), [event])
            nic.client.ask(vfio.SET_IRQS, struct.pack("<5I", 20, unmask, 0, 0, 1), [event])
            if semaphore:
                os.eventfd_write(event, 1 << 60)
            else:
                nic.client.write(vfio.IMS, 4)
                nic.client.write(vfio.ICS, 4)
            before, start = reads(), time.monotonic()
            pause(1)
            rate = (reads() - before) / (time.monotonic() - start)
            stage.notes["semaphore" if semaphore else "its own"] = round(rate)
            stage.check(rate <= 40000, f"{'a semaphore' if semaphore else 'the interrupt itself'}: {rate:.0f} reads a second")
            nic.close()
            os.close(event)
