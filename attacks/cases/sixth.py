"""What guests do to ports that send to them, and what users do to others' ports, holders and start."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time

from outside import asking, vhost
from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import pause
from outside.vhost import Guest

from .fourth import in_new_network
from .second import vale

HUGE = 2 << 20


def huge_file(stage, size):
    """A file on a tmpfs that clears 2 MiB at a time, as an ordinary user mounts one in a namespace of its own."""
    try:
        if "[deny]" in open("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read():
            raise Failure("the kernel makes no huge pages of files in memory")
    except FileNotFoundError:
        raise Failure("the kernel has no transparent huge pages") from None
    folder = tempfile.mkdtemp(prefix="sidecore-attack-huge-")
    stage.cleanup(os.rmdir, folder)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},huge=always", "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"no tmpfs of huge pages: {done.stderr.strip()}")
    stage.cleanup(subprocess.run, ["umount", "-l", folder])
    fd = os.open(os.path.join(folder, "memory"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class Slow:
    """A guest each of whose receive buffers is made slow by `prepare(slot)`, before it is offered and offered again."""

    def __init__(self, guest, slots, prepare):
        self.guest, self.prepare, self.got = guest, prepare, 0
        self.seen, self.stop = 0, threading.Event()
        for slot in range(slots):
            prepare(slot)
        guest.rx.offer(*range(slots))
        self.thread = threading.Thread(target=self.run)

    def run(self):
        rx = self.guest.rx
        while not self.stop.is_set():
            used = rx.used_index()
            while self.seen != used:
                slot = struct.unpack_from("<I", self.guest.memory, rx.used + 4 + 8 * (self.seen % rx.size))[0]
                self.prepare(slot % rx.size)
                rx.offer(slot % rx.size)
                self.seen, self.got = self.seen + 1 & 0xFFFF, self.got + 1
            pause(0.0005)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def burst(guest, count, size):
    """Frames for a station that has not spoken yet, all at once."""
    data = b"\0" * 12 + vhost.frame("02:00:00:00:00:99", "02:00:00:00:00:01", size)
    guest.memory[guest.out:guest.out + len(data)] = data
    slots = [(guest.tx.next + i) % guest.tx.size for i in range(count)]
    for slot in slots:
        guest.tx.put(slot, guest.out, len(data))
    guest.tx.offer(*slots)
    guest.tx.ring()


def beside(stage, slow, sender, each, gap, size=60):
    """An honest guest sends `each` frames a time; what the slow receiver may have cost by then."""
    start = time.monotonic()
    with stage.during(), slow:
        while time.monotonic() < start + max(stage.seconds, 2):
            if sender.tx.used_index() == sender.tx.next:
                burst(sender, each, size)
            pause(gap)
        stage.progress("while the receiver is slow")
        took = time.monotonic() - start
        evil, other = stage.daemon.port("evil"), stage.daemon.port("other")
        drops, overrun = evil["counters"]["drops"], evil["state"]["overrun"]
        spent, refused = overrun["total_us"] / 1e6, drops.get("overrun", 0) + drops.get("receiver_busy", 0)
        stage.notes.update(got=slow.got, refused=refused, overrun=overrun, sender=other["state"]["slow"])
        stage.check(slow.got or refused, "nothing came to the slow receiver: nothing was tried")
        charged = other["state"]["slow"]["total_us"] / 1e6
        stage.check(charged <= 0.25 * took + 0.3, f"{charged:.2f} s of {took:.2f} s went into its memory, charged to the honest sender")
        # A twentieth, and one that began within its time.
        stage.check(spent <= 0.25 * took + 0.3, f"{spent:.2f} s of {took:.2f} s of the I/O core went into the slow receiver's memory")
        for port in (evil, other):
            stage.check(not port["state"].get("fault"), f"port {port['name']}: {port['state'].get('fault')}")


@attack("sixth", needs=("root",))
def untouched_buffers(stage):
    """Each receive buffer lies in a huge page that was never touched; an honest guest sends broadcasts, and must not pay for clearing them."""
    slots, size = 128, 160 * HUGE
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), size, fd=huge_file(stage, size), start=False)
    stage.cleanup(guest.close)

    def prepare(slot):
        at = (8 + slot) * HUGE
        vhost.punch(guest.fd, at, HUGE, True)
        guest.rx.put(slot, at, 2048, vhost.WRITE)

    slow = Slow(guest, slots, prepare)
    guest.front.table([(0, size, vhost.USER, 0)], [guest.fd])
    guest.start(0, guest.rx)
    guest.start(1, guest.tx)
    guest.front.sync()
    other = Guest(stage.at("other.sock"), receive=10)
    stage.cleanup(other.close)
    beside(stage, slow, other, 16, 0.02)
    guest.front.close()
    other.front.close()


@attack("sixth", needs=("root",))
def buffers_of_many_pieces(stage):
    """Each receive buffer consists of 255 pieces of six bytes, each in another page; an honest guest sends full batches."""
    slots, pieces, size = 256, 255, 256 << 20
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), size, features=vhost.VERSION_1 | vhost.INDIRECT, start=False)
    stage.cleanup(guest.close)
    table, room, pages = 1 << 20, 4 << 20, (size - (4 << 20)) // 4096
    vhost.punch(guest.fd, 0, size, False)
    for slot in range(slots):
        for i in range(pieces):
            at = room + (slot * pieces + i) % pages * 4096 + i % 32 * 64
            last = i == pieces - 1
            struct.pack_into("<QIHH", guest.memory, table + slot * 4096 + 16 * i, at, 64 if last else 6, vhost.WRITE | (0 if last else vhost.NEXT), i + 1)

    def prepare(slot):
        guest.rx.put(slot, table + slot * 4096, 16 * pieces, vhost.INDIRECT_FLAG)

    slow = Slow(guest, slots, prepare)
    guest.front.table([(0, size, vhost.USER, 0)], [guest.fd])
    guest.start(0, guest.rx)
    guest.start(1, guest.tx)
    guest.front.sync()
    other = Guest(stage.at("other.sock"), receive=10)
    stage.cleanup(other.close)
    beside(stage, slow, other, 250, 0.001, 1514)
    guest.front.close()
    other.front.close()


@attack("sixth", needs=("root",))
def untouched_tables(stage):
    """The descriptors of each frame end in a huge page of their own that was never touched."""
    slots, first = 120, 8
    size = (first + 2 * slots + 2) * HUGE
    stage.start("vhost-user:DIR/evil.sock")
    fd = huge_file(stage, size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, features=vhost.VERSION_1 | vhost.INDIRECT, start=False)
    stage.cleanup(guest.close)
    tx = guest.tx

    def untouched(slot):
        return (first + 2 * slot + 1) * HUGE

    for slot in range(slots):
        # Header and frame are zeros; the second descriptor is one, too: it is empty, and ends the chain.
        struct.pack_into("<QIHH", guest.memory, untouched(slot) - 64, 4 * HUGE, 26, vhost.NEXT, 8)
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    with stage.during():
        end, first_burst = time.monotonic() + max(stage.seconds, 2), None
        while time.monotonic() < end:
            for slot in range(slots):
                vhost.punch(fd, untouched(slot), HUGE, True)
            places = [(tx.next + i) % tx.size for i in range(slots)]
            for slot, place in enumerate(places):
                tx.put(place, untouched(slot) - 64, 4096, vhost.INDIRECT_FLAG)
            tx.offer(*places)
            tx.ring()
            until(lambda: stage.alive() or tx.used_index() == tx.next, 60, "the daemon takes the frames")
            first_burst = first_burst or stage.daemon.port("evil")
        port = stage.daemon.port("evil")
        batches, slow = first_burst["counters"]["batches"], first_burst["state"]["slow"]
        stage.notes.update(slow=port["state"]["slow"], batches=batches)
        stage.check(not port["state"].get("fault"), f"port evil: {port['state'].get('fault')}")
        # Without a bound all tables are followed at once, and then the frames are taken in few batches.
        bounded = batches >= 30 or 2 * slow["longest_us"] <= slow["total_us"]
        stage.check(bounded, f"{slots} frames were taken in {batches} batches, the longest of {slow['longest_us'] // 1000} ms: no bound in time ends it")
    guest.front.close()


class Connected:
    """Connections that another user has made, so that the daemon takes them for that user's."""

    def __init__(self, user, path):
        self.user, self.path = user, path

    def __call__(self):
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(self.user)
                os.setuid(self.user)
                with socket.socket(socket.AF_UNIX) as k:
                    k.connect(self.path)
                    vhost.send_fds(theirs, b"x", [k.fileno()])
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        theirs.close()
        _, rights, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
        ours.close()
        k = socket.socket(fileno=struct.unpack("i", rights[0][2])[0])
        k.settimeout(5)
        return k


def place(k, verb, name):
    """A request at the netmap socket; its error number, and the place that it leads to."""
    k.sendall(struct.pack("<4sIII", b"vale", 1, verb, 0) + name.encode().ljust(64, b"\0") + b"\0" * 48)
    data = b""
    while len(data) < 512:
        data += k.recv(512 - len(data)) or b"\0" * 512
    return struct.unpack_from("<I", data, 8)[0], data[24:88].split(b"\0")[0].decode()


@attack("sixth", needs=("root",))
def netmap_users(stage):
    """Of two users at the netmap socket, one takes all places, keeps the other's ports, and names the pipes of all."""
    stage.start(args=["--vale-mode", "0666"])
    for folder in (stage.at(""), stage.at("ring")):
        os.chmod(folder, 0o755)
    honest, evil = (Connected(user, stage.at("ring/.netmap")) for user in (1501, 1502))
    root = Connected(0, stage.at("ring/.netmap"))
    with stage.during():
        a, b = honest(), evil()
        stage.check(vale(a, 1, "vale9:a", 64, 1) == 0, "an honest user gets no port")
        stage.check(vale(b, 1, "vale9:a") != 0, "another user keeps a port")
        a.close()
        try:
            until(lambda: "vale9.a" not in stage.daemon.ports(), 20, "the port goes with its user")
        except Exception:
            stage.check(False, "a port stays after its user has left")
        # Pipes in its own port's memory, by a name that others will use.
        answers = [vale(b, 1, "vale9:b", 64, 1), place(b, 1, "lb{1@vale9:b")[0]]
        stage.check(answers == [0, 0], f"what a user does with its own port is refused: {answers}")
        r = root()
        stage.notes["pipes"] = [place(b, 1, "lb{1"), place(r, 1, "lb{1")]
        stage.check(stage.notes["pipes"][0] == (0, "vale9:b"), "a user's own name does not lead to its port")
        stage.check(stage.notes["pipes"][1] != (0, "vale9:b"), "root's program is led into another user's memory")
        made = 0
        while made < 200 and vale(b, 1, f"vale9:q{made}", 2, 1) == 0:
            made += 1
        a = honest()
        stage.notes["places"] = made
        stage.check(vale(a, 1, "vale9:mine", 2, 1) == 0, f"one user has all {made} places")
        more = [Connected(1503 + i, evil.path)() for i in range(6)]
        for k in more:
            for i in range(64):
                if vale(k, 1, f"vale9:u{k.fileno()}.{i}", 2, 1):
                    break
        stage.check(vale(r, 1, "vale9:root", 2, 1) == 0, "root gets no place beside six users")
        for k in (a, b, r, *more):
            k.close()
        until(lambda: sorted(stage.daemon.ports()) == list("abcd"), 10, "all places are returned")


def with_an_interface_of_nobodys():
    """A network namespace with a TAP interface for several queues, as `ip tuntap add` without `user` makes it, and its sysfs."""
    in_new_network()
    if asking.LIBC.unshare(0x20000) or asking.LIBC.mount(b"none", b"/", None, 0x44000, None) or asking.LIBC.mount(b"sysfs", b"/sys", b"sysfs", 0, None):
        raise OSError("unshare, mount")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    # IFF_TAP, IFF_NO_PI, IFF_MULTI_QUEUE, IFF_VNET_HDR; TUNSETIFF, TUNSETPERSIST
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"scopen", 0x2 | 0x1000 | 0x100 | 0x4000))
    fcntl.ioctl(tun, 0x400454CB, 1)
    os.close(tun)


@attack("sixth", needs=("root", "tun"))
def tap_of_nobodys(stage):
    """A TAP port stands on an interface to which every user may attach a queue: the daemon has to say so."""
    stage.start("vhost-user:DIR/evil.sock", ports=["t=tap:scopen,switch=evil,queues=2"], before=with_an_interface_of_nobodys)
    with stage.during():
        state = stage.daemon.port("t")["state"]
        stage.check("any local user" in (state.get("hint") or ""), f"nothing is said of it: {state.get('hint')!r}")
        stage.check(stage.daemon.log("any local user"), "nothing is logged of it")


@attack("sixth", needs=("root",))
def silent_holders(stage):
    """Processes of the daemon's own user listen in the places of three holders and say nothing: a start waits once, and an added port holds up no request."""
    names = ("e1", "e2", "e3", "e4")
    folder = tempfile.mkdtemp(prefix="sidecore-attack-")
    stage.cleanup(shutil.rmtree, folder, True)
    for name in names:
        squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stage.cleanup(squatter.close)
        squatter.bind(f"{folder}/{name}.sock.hold")
        squatter.listen(8)
    start = time.monotonic()
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{n}=e1000:{folder}/{n}.sock,switch=evil" for n in names[:3]], ready=60)
    took = time.monotonic() - start
    stage.notes["start_s"] = round(took, 1)
    # One patience of 10 s; one after the other they were 30.
    stage.check(took < 25, f"the start took {took:.1f} s")
    with stage.during():
        stage.daemon.name("s", f"{folder}/e4.sock")
        adding = threading.Thread(target=lambda: http(stage.daemon.control, "POST", "/v1/ports", {"name": "e4", "kind": "e1000", "where": f"{folder}/e4.sock", "switch": "evil"}, timeout=40))
        adding.start()
        answers, slowest = 0, 0.0
        while adding.is_alive() and answers < 100:
            pause(0.2)
            start = time.monotonic()
            stage.daemon.ports(timeout=30)
            answers, slowest = answers + 1, max(slowest, time.monotonic() - start)
        adding.join()
        stage.notes.update(slowest_s=round(slowest, 2), answers=answers)
        stage.check(slowest < 6, f"while a port was added, others waited for {slowest:.1f} s")
        stage.daemon.ask("DELETE", "/v1/ports/e4")
