"""What an attacker would do first with a thread of the program: system calls of x86-64."""

import os
import signal
import struct


HERE = -100  # AT_FDCWD
AF_UNIX, AF_INET, AF_INET6, AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP = 1, 2, 10, 17, 38, 40, 44
STREAM, DATAGRAM, RAW = 1, 2, 3
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
