"""The daemon itself turns hostile: what a thread of it may do that an attacker has taken over."""

import os
import platform
import signal
import socket
import struct
import time

from outside.case import attack
from outside.daemon import Daemon, Failure, until
from outside.inject import Ended, Thread, threads

HERE = -100  # AT_FDCWD
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP = 1, 2, 10, 16, 17, 38, 40, 44
STREAM, DATAGRAM, RAW = 1, 2, 3
# Threads of each kind, by how their names begin. They have four filters: of io-core, conversation, helper and control.
KINDS = (("io-core-", "io-core"), ("vu-", "vhost-user"), ("vfu-", "vfio-user"), ("ring-", "ring"), ("netmap", "netmap"),
         ("carriers", "watch"), ("sidecore", "control"))
FILTERS = 4


def one_of_each(daemon):
    """A thread of each kind: its number, and the kind's name."""
    found = {}
    for tid, name in threads(daemon.pid):
        for start, kind in KINDS:
            if name.startswith(start):
                found.setdefault(kind, tid)
    # A thread takes its name by itself.
    return found if len(found) == len(KINDS) else None


def deeds(folder, parent, broker):
    """What an attacker would try first: what it is called, the number of the call, its arguments."""
    here = lambda name: os.path.join(folder, name).encode() + b"\0"
    return [
        ("read a file of root's", 257, HERE, b"/etc/shadow\0", os.O_RDONLY, 0),
        ("write a file of root's", 257, HERE, b"/etc/passwd\0", os.O_WRONLY, 0),
        ("write a file of root's by open", 2, b"/etc/passwd\0", os.O_WRONLY, 0),
        ("make a file", 257, HERE, here("was-here"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600),
        ("make a file that has no name", 257, HERE, here(""), 0o20000000 | os.O_DIRECTORY | os.O_WRONLY, 0o600),
        ("make a file by openat2", 437, HERE, here("was-here"), struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o600, 0), 24),
        ("read memory of another process", 257, HERE, f"/proc/{broker}/mem\0".encode(), os.O_RDONLY, 0),
        ("open a disk", 257, HERE, b"/dev/mem\0", os.O_RDWR, 0),
        ("truncate", 76, here("victim"), 0),
        ("remove", 263, HERE, here("victim"), 0),
        ("remove by unlink", 87, here("victim")),
        ("rename", 316, HERE, here("victim"), HERE, here("was-here"), 0),
        ("rename by rename", 82, here("victim"), here("was-here")),
        ("link", 265, HERE, here("victim"), HERE, here("was-here"), 0),
        ("symlink", 266, b"/etc/passwd\0", HERE, here("was-here")),
        ("make a folder", 258, HERE, here("was-here"), 0o700),
        ("make a folder by mkdir", 83, here("was-here"), 0o700),
        ("chmod", 268, HERE, here("victim"), 0o777),
        ("chmod by chmod", 90, here("victim"), 0o777),
        ("chown", 260, HERE, here("victim"), 65534, 65534, 0),
        ("change times", 280, HERE, here("victim"), 0, 0),
        ("set an attribute", 188, here("victim"), b"user.x\0", b"x", 1, 0),
        ("run a program", 59, b"/bin/true\0", 0, 0),
        ("run a program by execveat", 322, HERE, b"/bin/true\0", 0, 0, 0),
        ("make a process in a user namespace", 56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0),
        ("make a process in a network namespace", 56, 0x40000000 | signal.SIGCHLD, 0, 0, 0, 0),
        ("make a process by clone3", 435, struct.pack("11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88),
        ("make a process by vfork", 58),
        ("a TCP socket", 41, AF_INET, STREAM, 0),
        ("a UDP socket", 41, AF_INET, DATAGRAM, 0),
        ("a raw socket", 41, AF_INET, RAW, 255),
        ("a UDP socket of IPv6", 41, AF_INET6, DATAGRAM, 0),
        ("a packet socket", 41, AF_PACKET, RAW, 0x300),
        ("an AF_XDP socket", 41, AF_XDP, RAW, 0),
        ("a socket to the host's VMM", 41, AF_VSOCK, STREAM, 0),
        ("a socket of the kernel's ciphers", 41, AF_ALG, 5, 0),
        ("kill the parent", 62, parent, signal.SIGCONT),
        ("kill the broker", 62, broker, signal.SIGKILL),
        ("kill init", 62, 1, 0),
        ("kill by tgkill", 234, parent, parent, signal.SIGCONT),
        ("kill by pidfd", 424, 0, signal.SIGKILL, 0, 0),
        ("kill by a queued signal", 129, parent, signal.SIGCONT, bytes(128)),
        ("become root", 117, 0, 0, 0),
        ("become root by setuid", 105, 0),
        ("a group of root's", 116, 1, struct.pack("I", 0)),
        ("take capabilities", 126, struct.pack("II", 0x20080522, 0), struct.pack("6I", *[0xffffffff] * 6)),
        ("be looked into", 157, 4, 1, 0, 0, 0),
        ("another personality", 135, 0x0040000),
        ("memory that runs", 9, 0, 4096, 1 | 4, 0x22, -1, 0),
        ("bpf", 321, 5, bytes(128), 128),
        ("dump core again", 160, 4, struct.pack("QQ", 1 << 30, 1 << 30)),
        ("dump core again by prlimit", 302, 0, 4, struct.pack("QQ", 1 << 30, 1 << 30), 0),
        ("another process's limits", 302, parent, 7, struct.pack("QQ", 3, 3), 0),
        ("type into a terminal", 16, 0, 0x5412, b"x"),
        ("shared memory of System V", 29, 0, 4096, 0o1600),
        ("a message queue", 240, b"was-here\0", os.O_CREAT, 0o600, 0),
        ("watch files", 294, 0),
        ("an io_uring of the old kind", 206, 1, bytes(8)),
        ("lower the priority of others", 141, 0, parent, 19),
        ("a real-time priority", 144, 0, 1, struct.pack("i", 50)),
    ]


# Each of these ends the caller: none of our processes makes it.
FATAL = (
    ("ptrace", 101, 16, 1, 0, 0), ("process_vm_readv", 310, 1, 0, 0, 0, 0, 0), ("process_vm_writev", 311, 1, 0, 0, 0, 0, 0),
    ("pidfd_getfd", 438, 0, 0, 0), ("userfaultfd", 323, 1), ("perf_event_open", 298, 0, 0, -1, -1, 0),
    ("open_by_handle_at", 304, HERE, 0, 0), ("mount", 165, b"none\0", b"/mnt\0", b"tmpfs\0", 0, 0), ("umount2", 166, b"/mnt\0", 0),
    ("pivot_root", 155, b"/\0", b"/\0"), ("chroot", 161, b"/tmp\0"), ("unshare", 272, 0x10000000), ("setns", 308, 0, 0),
    ("open_tree", 428, HERE, b"/\0", 1), ("fsopen", 430, b"tmpfs\0", 0), ("init_module", 175, 0, 0, b"\0"), ("kexec_load", 246, 0, 0, 0, 0),
    ("reboot", 169, 0, 0, 0, 0), ("add_key", 248, b"user\0", b"x\0", b"x", 1, -3), ("keyctl", 250, 0, -3, 0),
    ("mknodat", 259, HERE, b"/tmp/was-here\0", 0o20600, 0x103), ("iopl", 172, 3), ("memfd_secret", 447, 0),
)


def ready(stage):
    if platform.machine() != "x86_64":
        raise Failure("it knows the system calls of x86-64")
    return ["evil1=e1000:DIR/evil1.sock,switch=evil", "evil2=ring:DIR/evil2.sock,switch=evil"]


def refused(daemon):
    answer = daemon.ask("GET", "/v1/daemon")
    return {(r["threads"], r["call"]): r["count"] for r in answer["sandbox"]["refused"]}


@attack("3.3", needs=("root",))
def hostile_worker(stage):
    """A thread of each kind of the running daemon does what an attacker would do first; each deed has to fail."""
    daemon = stage.start("vhost-user:DIR/evil.sock", ports=ready(stage))
    # Any other process could do this in this folder: only the sandbox is in the way.
    os.chmod(daemon.folder, 0o777)
    victim = daemon.path("victim")
    open(victim, "w").close()
    os.chmod(victim, 0o666)
    broker = next(daemon.children())
    done = trapped = 0
    service = socket.socket(AF_UNIX)
    service.bind("\0sidecore-attack-%d" % os.getpid())
    service.listen()
    with stage.during():
        for kind, tid in until(lambda: one_of_each(daemon), 10, "a thread of each kind").items():
            before = refused(daemon)
            answers = []
            with Thread(daemon, tid) as thread:
                for deed in deeds(daemon.folder, os.getpid(), broker):
                    answers.append((deed[0], *thread.call(*deed[1:])))
                # Memory that is there made runnable, and a service of the host.
                answers.append(("memory that runs, by mprotect", *thread.call(10, thread.data & ~4095, 4096, 7)))
                made, _ = thread.call(41, AF_UNIX, STREAM, 0)
                if made >= 0:
                    name = b"\0sidecore-attack-%d" % os.getpid()
                    address = struct.pack("H", AF_UNIX) + name
                    answers.append(("call a service of the host", *thread.call(42, made, address, len(address))))
                    thread.call(3, made)
            stage.alive()
            for what, result, _ in answers:
                stage.check(result < 0, f"{kind}: {what}: done, with {result}")
            trapped_here = sum(t for *_, t in answers)
            counted = sum(refused(daemon).values()) - sum(before.values())
            stage.check(counted >= trapped_here, f"{kind}: {trapped_here} calls were refused, {counted} are counted")
            stage.check(trapped_here > 20, f"{kind}: the filter refused no more than {trapped_here} of {len(answers)}")
            done, trapped = done + len(answers), trapped + trapped_here
    service.close()
    stage.check(os.path.exists(victim) and not os.path.exists(daemon.path("was-here")), "files were changed")
    table = {kind for kind, _ in refused(daemon)}
    stage.check(len(table) >= FILTERS, f"refusals are told of {table} only")
    until(lambda: daemon.log("refused by the sandbox"), 10, "a line in the log")
    stage.notes.update(deeds=done, by_filter=trapped)


@attack("3.3", needs=("root",))
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


@attack("3.3", needs=("root",))
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
