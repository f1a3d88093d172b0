"""Local users: paths, full file systems, connections that do nothing."""

import ctypes
import os
import signal
import socket
import struct
import tempfile
import time

from outside import vfio, vhost
from outside.case import attack
from outside.daemon import Daemon, Failure, http, until
from outside.flow import pause
from outside.vhost import Guest, Refused, libc

NOBODY = 65534
BROADCAST = "ff:ff:ff:ff:ff:ff"


def tiny_tmpfs(stage, size="1m"):
    """A folder that is a file system of its own, and full of nothing yet."""
    folder = tempfile.mkdtemp(prefix="sidecore-attack-tmpfs-")
    stage.cleanup(os.rmdir, folder)
    if libc.mount(b"attack", folder.encode(), b"tmpfs", 0, f"size={size},mode=755".encode()):
        raise Failure(f"no tmpfs: {os.strerror(ctypes.get_errno())}")
    stage.cleanup(libc.umount2, folder.encode(), 2)
    return folder


def fill(folder):
    """Takes all that is left of it; the file that does."""
    path = os.path.join(folder, "full")
    with open(path, "ab", buffering=0) as file:
        for piece in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(b"x" * piece)
            except OSError:
                pass
    return path


@attack("1.3", needs=("root",))
def full_tmpfs_at_start(stage):
    """The runtime folder's file system is full when the daemon starts."""
    folder = tiny_tmpfs(stage)
    fill(folder)
    daemon = Daemon(stage.options.binary, [stage.core], ["a=vhost-user:DIR/a.sock"], folder=folder, start=False)
    stage.cleanup(daemon.kill)
    ready = daemon.start()
    if ready:
        raise Failure("it started on a full file system")
    code = daemon.process.wait(10)
    stage.check(code == 1, f"it ended with {daemon.ending()}")
    until(lambda: daemon.lines, 20, "a word about why")
    stage.notes["said"] = daemon.lines[-1]


@attack("1.3", needs=("root",))
def full_tmpfs_at_add(stage):
    """The runtime folder's file system becomes full, and then ports are added."""
    folder = tiny_tmpfs(stage, "64m")
    stage.start("vhost-user:DIR/evil.sock", folder=folder)
    full = fill(folder)
    with stage.during():
        statuses = []
        for i in range(16):
            try:
                kind = ("vhost-user", "e1000", "ring")[i % 3]
                status, _ = http(stage.daemon.control, "POST", "/v1/ports", {"name": f"x{i}", "kind": kind, "where": f"{folder}/x{i}.sock", "switch": "evil"})
                statuses.append(status)
            except OSError:
                stage.alive()
                raise
        stage.notes["statuses"] = sorted(set(statuses))
        # A guest with packed rings wants its journal.
        try:
            guest = Guest(stage.at("evil.sock"), features=vhost.VERSION_1 | vhost.RING_PACKED)
            stage.cleanup(guest.close)
            guest.front.sync()
            guest.front.close()
        except Refused:
            pass
        stage.progress("with a full file system")
        os.unlink(full)
        for i, status in enumerate(statuses):
            if status == 200:
                stage.daemon.ask("DELETE", f"/v1/ports/x{i}")


def foreign_folder(stage):
    """A folder of another user, and a file of root's."""
    folder = stage.at("theirs")
    os.mkdir(folder, 0o755)
    os.chown(folder, NOBODY, NOBODY)
    secret = stage.at("secret")
    with open(secret, "w") as file:
        file.write("root's own: 17 by")
    os.chmod(secret, 0o600)
    return folder, secret


@attack("3.1", needs=("root",))
def symlink_race(stage):
    """While the daemon makes a socket in their folder, a user puts a link to root's file in its place."""
    stage.start()
    folder, secret = foreign_folder(stage)
    target = os.path.join(folder, "evil.sock")

    stage.daemon.name("s", target)
    swapper = stage.helper("swap", target, secret, os.path.join(folder, "spare"), NOBODY)
    before = os.stat(secret)
    rounds = 1000 if stage.full else 250
    made = 0
    with stage.during():
        for i in range(rounds):
            spec = {"name": "evil", "kind": "vhost-user", "where": target, "switch": "evil", "mode": "0666", "owner": "65534:65534"}
            status, _ = http(stage.daemon.control, "POST", "/v1/ports", spec)
            made += status == 200
            now = os.stat(secret)
            if (now.st_mode, now.st_uid, now.st_gid) != (before.st_mode, before.st_uid, before.st_gid):
                raise Failure(f"root's file has mode {now.st_mode & 0o777:o} and owner {now.st_uid} after {i + 1} rounds")
            if status == 200:
                http(stage.daemon.control, "DELETE", "/v1/ports/evil")
    swapper.process.kill()
    stage.notes.update(rounds=rounds, made=made)
    stage.check(os.path.exists(secret) and open(secret).read() == "root's own: 17 by", "root's file has changed")


@attack("3.1", needs=("root",))
def journal_through_a_link(stage):
    """A link to root's file stands where a port's journal would be."""
    stage.start()
    folder, secret = foreign_folder(stage)
    os.symlink(secret, os.path.join(folder, "evil.sock.journal"))
    with stage.during():
        stage.daemon.name("s", f"{folder}/evil.sock")
        spec = {"name": "evil", "kind": "vhost-user", "where": f"{folder}/evil.sock", "switch": "evil"}
        status, answer = http(stage.daemon.control, "POST", "/v1/ports", spec)
        if status == 200:
            try:
                guest = Guest(f"{folder}/evil.sock", features=vhost.VERSION_1 | vhost.RING_PACKED)
                stage.cleanup(guest.close)
                guest.front.sync()
                guest.front.close()
            except (Refused, OSError):
                pass
            http(stage.daemon.control, "DELETE", "/v1/ports/evil")
    stage.check(os.stat(secret).st_size == 17, f"root's file of 17 bytes has {os.stat(secret).st_size} now")
    stage.check(open(secret, "rb").read(17) == b"root's own: 17 by", "root's file has changed")


@attack("3.1", needs=("root",))
def counters_through_a_link(stage):
    """A link to root's file stands where the counters file would be."""
    folder = tempfile.mkdtemp(prefix="sidecore-attack-links-")
    stage.cleanup(lambda: os.path.isdir(folder) and [os.unlink(os.path.join(folder, f)) for f in os.listdir(folder)] and None or os.rmdir(folder))
    os.chmod(folder, 0o777)
    secret = os.path.join(folder, "secret")
    with open(secret, "w") as file:
        file.write("root's own: 17 by")
    os.chmod(secret, 0o600)
    link = os.path.join(folder, "counters")
    os.symlink(secret, link)
    os.lchown(link, NOBODY, NOBODY)
    daemon = Daemon(stage.options.binary, [stage.core], ["a=vhost-user:DIR/a.sock"], args=["--counters", link], start=False)
    stage.cleanup(daemon.remove)
    daemon.start()
    stage.notes["started"] = daemon.is_ready
    stage.check(open(secret).read() == "root's own: 17 by", "root's file was overwritten")
    if daemon.is_ready:
        daemon.stop()


def ring_message(ask, extra=0):
    """A request of a ring client: netmap's NIOCREGIF, as it goes over the socket."""
    return (b"ring" + struct.pack("<III", 3, ask, 0) + b"\0" * 64 + struct.pack("<I", extra)).ljust(128, b"\0")


@attack("3.2")
def extra_buffers(stage):
    """Ring clients ask for 163,840 extra buffers at ports that have none to give."""
    stage.start(ports=[f"r{i}=ring:DIR/r{i}.sock,switch=evil" for i in range(2)])
    shm = lambda: sum(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("Shmem:"))
    before, answers = shm(), []
    with stage.during():
        socks = []
        for i in range(2):
            sock = socket.socket(socket.AF_UNIX)
            stage.cleanup(sock.close)
            sock.settimeout(8)
            sock.connect(stage.at(f"r{i}.sock"))
            sock.sendall(ring_message(1, 163_840))
            data, rights, _, _ = sock.recvmsg(128, socket.CMSG_SPACE(4 * 64))
            fds = [fd for _, _, raw in rights for (fd,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4])]
            size = os.fstat(fds[0]).st_size if fds else 0
            answers.append(size)
            for fd in fds:
                os.close(fd)
            socks.append(sock)
        stage.notes["bytes"] = answers
        stage.check(all(size < 64 << 20 for size in answers), f"memories of {answers} bytes were made")
        stage.notes["grown_kib"] = shm() - before
        for sock in socks:
            sock.close()


def slow(stage, path, say, what, count=1000):
    """So many connections of one user that say next to nothing; a real client has to get in meanwhile."""
    stage.descriptors(count + 200)
    socks, misses = [], 0
    stage.cleanup(lambda: [s.close() for s in socks])
    for _ in range(count):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(0.05)
        try:
            s.connect(path)
            s.send(say)
        except OSError:  # the backlog of the socket is full
            s.close()
            misses += 1
            if misses > 60:
                break
            pause(0.01)
            continue
        socks.append(s)
        misses = 0
    stage.notes["connected"] = len(socks)
    stage.check(os.path.exists(path), f"{path} is not there: nothing was tried")

    def open_still():
        return stage.daemon.usage()["fds"] - stage.used_before["fds"]

    stage.control(f"beside {len(socks)} slow connections", 15)
    try:
        until(lambda: open_still() <= 300, 25, "few")
    except Failure:
        raise Failure(f"{open_still()} slow connections of {what} are open after 25 s") from None
    stage.notes["open"] = open_still()
    for s in socks:
        s.close()


@attack("3.2")
def slow_control(stage):
    """1,000 connections to the control socket that send half a request."""
    stage.start()
    with stage.during():
        slow(stage, stage.daemon.control, b"GET /v1/po", "the control socket")


@attack("3.2")
def slow_netmap(stage):
    """1,000 connections to the socket for netmap programs that send half a request."""
    stage.start()
    with stage.during():
        slow(stage, stage.at("ring/.netmap"), b"vale\x01\0\0\0", "the socket for netmap programs")


@attack("3.2")
def slow_captures(stage):
    """1,000 captures that are never read."""
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during():
        request = b"GET /v1/capture/evil HTTP/1.1\r\nhost: x\r\n\r\n"
        slow(stage, stage.daemon.control, request, "captures")


def holders(stage):
    """Processes that keep descriptors for this daemon: its path stands in their socket's name or command line, or it is their ancestor."""
    parents, lines = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = open(f"/proc/{entry}/stat").read()
            lines[int(entry)] = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])

    def ours(pid):
        while pid in parents and pid != stage.daemon.pid:
            pid = parents[pid]
        return pid == stage.daemon.pid

    return {pid for pid, line in lines.items() if line[1:2] == [b"hold"] and (ours(pid) or stage.daemon.folder.encode() in b" ".join(line))}


@attack("3.2")
def connect_and_close_storm(stage):
    """A vfio-user client connects and closes as often as it can, with and without a word: each time a holder process was started."""
    stage.start("e1000:DIR/evil.sock")
    seconds, spoke, silent, most, threads, seen = 2 * stage.seconds, 0, 0, 0, 0, set()
    threads_before, ticks_before = stage.threads("io-core")
    start = time.monotonic()
    with stage.during():
        while time.monotonic() < start + seconds or not spoke:
            stage.alive()
            for speaks in (False, True):
                try:
                    vfio.Client(stage.at("evil.sock"), timeout=10, version=speaks).close()
                    spoke, silent = spoke + speaks, silent + (not speaks)
                except (Refused, TimeoutError, OSError):
                    pass
            now = holders(stage)
            seen |= now
            most, threads = max(most, len(now)), max(threads, stage.threads("io-core")[0])
    ticks = stage.threads("io-core")[1] - ticks_before
    came = stage.conversation("evil")["connections"]
    took = time.monotonic() - start
    stage.notes.update(connections=came, spoke=spoke, silent=silent, holders=most, different=len(seen), ticks=ticks)
    # The pauses are 50, 100, 200, 400, 800 ms, and then a second each.
    stage.check(came <= 6 + took, f"{came} connections in {took:.1f} s: nothing holds them back")
    stage.check(most <= 2, f"{most} holders at a time")
    stage.check(len(seen) <= spoke + 1, f"{len(seen)} holders for {spoke} clients that said a word")
    stage.check(threads <= threads_before + 2, f"{threads} threads instead of {threads_before}")
    hertz = os.sysconf("SC_CLK_TCK")
    stage.check(ticks <= took * hertz / 2, f"threads that are no I/O cores had {ticks / hertz} s of {took:.1f} s")


HOLD = 0x7363686C << 32


@attack("3.3")
def list_a_holder(stage):
    """A process of the daemon's own user asks a holder for another VM's memory."""
    stage.start("e1000:DIR/evil.sock")
    nic = vfio.Nic(stage.at("evil.sock"))  # the other VM
    stage.cleanup(nic.close)
    at = [os.path.join(folder, f) for folder, _, files in os.walk(stage.daemon.folder) for f in files if f.endswith(".hold")]
    found, refused = 0, []
    with stage.during():
        # As after the daemon's end: a holder speaks with one at a time.
        os.kill(stage.daemon.pid, signal.SIGSTOP)
        try:
            for path in at:
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
                except OSError as e:
                    refused.append(str(e))
                finally:
                    sock.close()
        finally:
            os.kill(stage.daemon.pid, signal.SIGCONT)
    stage.notes["refused"] = refused
    stage.check(not found, f"{found} descriptors of another VM were handed out beside the running daemon")
    nic.client.close()


@attack("3.3")
def list_a_holder_of_a_dead_daemon(stage):
    """The same after the daemon was killed, before the next one comes."""
    stage.start("e1000:DIR/evil.sock", neighbours=False)
    nic = vfio.Nic(stage.at("evil.sock"))
    stage.cleanup(nic.close)
    at = [os.path.join(folder, f) for folder, _, files in os.walk(stage.daemon.folder) for f in files if f.endswith(".hold")]
    kids = list(stage.daemon.children())
    stage.cleanup(lambda: [reap_child(kid, stage.daemon.folder) for kid in kids])
    stage.daemon.process.kill()
    stage.daemon.process.wait()
    found = 0
    for path in at:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(2)
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
    stage.check(not found, f"{found} descriptors of another VM were handed out")
    nic.client.close()
    stage.spared.add("end")


def reap_child(pid, folder):
    try:
        if folder.encode() in open(f"/proc/{pid}/cmdline", "rb").read():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


@attack("1.1")
def tables_of_1024_maps(stage):
    """Eight VMMs map 1,024 regions each; a ninth, honest one has to get in."""
    names = [f"evil{i}" for i in range(8)]
    stage.start(ports=[f"{n}=e1000:DIR/{n}.sock,switch=evil" for n in names] + ["late=vhost-user:DIR/late.sock,switch=evil"])
    total = 0
    with stage.during():
        fd = vhost.memfd(1024 << 12)
        stage.cleanup(os.close, fd)
        clients = []
        for name in names:
            client = vfio.Client(stage.at(f"{name}.sock"))
            stage.cleanup(client.close)
            clients.append(client)
            for i in range(1024):
                try:
                    client.map(i << 12, 1 << 12, fd, i << 12)
                    total += 1
                except Refused:
                    break
        try:
            guest = Guest(stage.at("late.sock"))
            stage.cleanup(guest.close)
            guest.send(vhost.frame(BROADCAST, "02:00:00:00:bb:01"))
            until(lambda: stage.daemon.port("late")["counters"]["in_frames"], 20, "in")
        except (Failure, Refused):
            raise Failure(f"beside {total} maps of others an honest VMM is refused: {stage.daemon.port('late')['state'].get('fault')}") from None
    stage.notes["maps"] = total
    for end in clients + [guest.front]:
        end.close()


@attack("1.4", needs=("root",))
def memory_cgroup(stage):
    """The daemon runs under a memory limit: it has to know, and to say so."""
    v1 = "/sys/fs/cgroup/memory"
    v2 = next((p for p in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if os.path.exists(f"{p}/cgroup.controllers")), None)
    name = f"sidecore-attack-{os.getpid()}"
    if os.path.exists(f"{v1}/memory.limit_in_bytes"):
        group, limit = f"{v1}/{name}", "memory.limit_in_bytes"
    elif v2 and "memory" in open(f"{v2}/cgroup.controllers").read():
        group, limit = f"{v2}/{name}", "memory.max"
    else:
        raise Failure("no memory controller is at hand")
    try:
        os.mkdir(group)
        stage.cleanup(os.rmdir, group)
        with open(f"{group}/{limit}", "w") as file:
            file.write(str(1 << 30))
    except OSError as e:
        raise Failure(f"no group for memory can be made: {e}") from None

    def join():
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    stage.start("vhost-user:DIR/evil.sock", before=join)
    words = [line for line in stage.daemon.lines if "memory" in line and ("limit" in line or "cgroup" in line)]
    stage.check(words, "nothing is said of the memory limit")
    with stage.during(0.5):
        pass


@attack("3.2")
def descriptors_for_everybody(stage):
    """Every socket gets messages with 200 unrequested descriptors."""
    stage.start("vhost-user:DIR/evil.sock", ports=["e=e1000:DIR/e.sock,switch=evil", "r=ring:DIR/r.sock,switch=evil"])
    fd = vhost.memfd(4096)
    stage.cleanup(os.close, fd)
    with stage.during():
        for path in (stage.daemon.control, stage.at("ring/.netmap"), stage.at("evil.sock"), stage.at("e.sock"), stage.at("r.sock")):
            for data in (b"GET /v1/ports HTTP/1.1\r\nhost: x\r\n\r\n", struct.pack("<III", 1, 1, 0), struct.pack("<HHIII", 1, 1, 20, 0, 0) + b"\0" * 4, b"x", ring_message(2)):
                for _ in range(10):
                    s = socket.socket(socket.AF_UNIX)
                    s.settimeout(0.05)
                    try:
                        s.connect(path)
                        vhost.send_fds(s, data, [fd] * 200)
                        s.recv(16)
                    except (OSError, TimeoutError):
                        pass
                    s.close()
            stage.control(f"behind descriptors for {os.path.basename(path)}")
