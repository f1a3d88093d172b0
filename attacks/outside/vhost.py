"""A vhost-user front end and a virtqueue, as simple or as wrong as the attack wants them.

After QEMU's docs/interop/vhost-user.rst and virtio 1.2.
"""

import array
import ctypes
import mmap
import os
import select
import socket
import struct

from . import words

GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE, SET_LOG_BASE = 1, 2, 3, 5, 6
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE = 8, 9, 10
SET_VRING_KICK, SET_VRING_CALL = 12, 13
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, SET_VRING_ENABLE = 15, 16, 18
GET_INFLIGHT_FD, SET_INFLIGHT_FD = 31, 32

VERSION_1, PROTOCOL, LOG_ALL = 1 << 32, 1 << 30, 1 << 26
CSUM, HOST_TSO4, INDIRECT, RING_PACKED = 1 << 0, 1 << 11, 1 << 28, 1 << 34
P_MQ, P_LOG_SHMFD, P_REPLY_ACK, P_MTU, P_CONFIG, P_INFLIGHT, P_SLOTS = 1 << 0, 1 << 1, 1 << 3, 1 << 4, 1 << 9, 1 << 12, 1 << 15

NEED_REPLY = 8
NEXT, WRITE, INDIRECT_FLAG = 1, 2, 4
USER = 0x7F00_0000_0000  # user addresses of region 0; only the protocol compares them

libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The back end hung up, or said no."""


def memfd(size, flags=0, name="guest"):
    fd = os.memfd_create(name, os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, size)
    return fd


def send_fds(sock, data, fds):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return sock.sendmsg([data], rights)


class FrontEnd:
    """A conversation."""

    def __init__(self, path, timeout=40.0):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout)
        self.sock.connect(path)

    def close(self):
        self.sock.close()

    def send(self, request, payload=b"", fds=(), flags=0):
        try:
            send_fds(self.sock, struct.pack("<III", request, 1 | flags, len(payload)) + payload, list(fds))
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Refused("hung up") from e

    def exactly(self, count):
        data, self.fds = b"", []
        while len(data) < count:
            try:
                piece, rights, _, _ = self.sock.recvmsg(count - len(data), socket.CMSG_SPACE(4 * 16))
            except ConnectionResetError as e:
                raise Refused("hung up") from e
            for level, kind, fds in rights:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self.fds += array.array("i", fds[: len(fds) - len(fds) % 4])
            if not piece:
                raise Refused("hung up")
            data += piece
        return data

    def answer(self, request):
        got, _, size = struct.unpack("<III", self.exactly(12))
        fds = self.fds
        payload = self.exactly(size) if size else b""
        self.fds = fds + (self.fds if size else [])
        if got != request:
            raise Refused(f"an answer to {got} instead of {request}")
        return payload

    def ask(self, request, payload=b"", fds=()):
        self.send(request, payload, fds)
        return self.answer(request)

    def acked(self, request, payload=b"", fds=()):
        """Sends, and waits for the acknowledgement (REPLY_ACK); the code, 0 if it was done."""
        self.send(request, payload, fds, NEED_REPLY)
        return struct.unpack("<Q", self.answer(request))[0]

    def features(self):
        return struct.unpack("<Q", self.ask(GET_FEATURES))[0]

    def number(self, request, value):
        self.send(request, struct.pack("<Q", value))

    def state(self, request, index, value):
        self.send(request, struct.pack("<II", index, value))

    def hello(self, features=VERSION_1, protocol=P_REPLY_ACK | P_MQ | P_LOG_SHMFD | P_INFLIGHT | P_SLOTS):
        self.send(SET_OWNER)
        offered = self.features()
        self.number(SET_FEATURES, (features | PROTOCOL) & offered)
        self.protocol = struct.unpack("<Q", self.ask(GET_PROTOCOL_FEATURES))[0] & protocol
        self.number(SET_PROTOCOL_FEATURES, self.protocol)
        return offered

    def sync(self):
        """Everything before is done."""
        self.features()

    def table(self, regions, fds, acked=False):
        """SET_MEM_TABLE: of (guest, size, user, offset)."""
        payload = struct.pack("<II", len(regions), 0) + b"".join(struct.pack("<QQQQ", *r) for r in regions)
        if acked:
            return self.acked(SET_MEM_TABLE, payload, fds)
        self.send(SET_MEM_TABLE, payload, fds)

    def hung_up(self, seconds=5.0):
        """Whether it hangs up within that time."""
        ready = select.poll()
        ready.register(self.sock, select.POLLIN | select.POLLRDHUP)
        if not ready.poll(seconds * 1000):
            return False
        try:
            return self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except (BlockingIOError, ConnectionResetError):
            return True


class Queue:
    """A split ring in memory that starts at guest address 0."""

    def __init__(self, memory, at, size=256):
        self.memory, self.size = memory, size
        self.desc = at
        self.avail = at + 16 * size
        self.used = (self.avail + 6 + 2 * size + 4095) & ~4095
        self.end = (self.used + 6 + 8 * size + 4095) & ~4095
        self.next = 0
        self.kick = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.call = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def put(self, index, addr, length, flags=0, following=0):
        struct.pack_into("<QIHH", self.memory, self.desc + 16 * (index % self.size), addr & (1 << 64) - 1, length, flags, following)

    def offer(self, *heads):
        for head in heads:
            struct.pack_into("<H", self.memory, self.avail + 4 + 2 * (self.next % self.size), head)
            self.next = self.next + 1 & 0xFFFF
        self.index(self.next)

    def index(self, value):
        words.put(self.memory, self.avail + 2, value & 0xFFFF, "H")

    def flags(self, value):
        words.put(self.memory, self.avail, value, "H")

    def used_index(self):
        return words.get(self.memory, self.used + 2, "H")

    def ring(self):
        try:
            os.eventfd_write(self.kick, 1)
        except BlockingIOError:
            pass


class Guest:
    """A front end with memory and both queues of a pair; region 0 is at guest address 0."""

    def __init__(self, path, size=4 << 20, fd=None, features=VERSION_1, protocol=None, ring_at=0, ring=256, start=True, receive=0, timeout=40.0):
        self.fd = memfd(size) if fd is None else fd
        self.size = size
        self.memory = mmap.mmap(self.fd, size)
        self.front = FrontEnd(path, timeout)
        self.front.hello(features, *([] if protocol is None else [protocol]))
        self.rx = Queue(self.memory, ring_at, ring)
        self.tx = Queue(self.memory, self.rx.end, ring)
        self.buffers = (self.tx.end + 4095) & ~4095
        self.receive = receive
        for i in range(receive):
            self.rx.put(i, self.buffers + 2048 * i, 2048, WRITE)
        if receive:
            self.rx.offer(*range(receive))
        self.out = self.buffers + 2048 * receive
        if start:
            self.front.table([(0, size, USER, 0)], [self.fd])
            self.start(0, self.rx)
            self.start(1, self.tx)
            self.front.sync()

    def start(self, index, queue, base=0, kick=None, call=None, num=None):
        f = self.front
        f.state(SET_VRING_NUM, index, num or queue.size)
        f.state(SET_VRING_BASE, index, base)
        f.send(SET_VRING_ADDR, struct.pack("<IIQQQQ", index, 0, USER + queue.desc, USER + queue.used, USER + queue.avail, 0))
        f.send(SET_VRING_CALL, struct.pack("<Q", index), [queue.call if call is None else call])
        f.send(SET_VRING_KICK, struct.pack("<Q", index), [queue.kick if kick is None else kick])
        f.state(SET_VRING_ENABLE, index, 1)

    def send(self, frame, header=b"\0" * 12):
        """One frame in one descriptor."""
        slot = self.tx.next % self.tx.size
        data = header + frame
        at = self.out + 2048 * slot
        self.memory[at:at + len(data)] = data
        self.tx.put(slot, at, len(data))
        self.tx.offer(slot)
        self.tx.ring()

    def close(self):
        if self.fd < 0:
            return
        self.front.close()
        for queue in (self.rx, self.tx):
            for fd in (queue.kick, queue.call):
                os.close(fd)
        try:
            self.memory.close()
        except (BufferError, ValueError):
            pass
        os.close(self.fd)
        self.fd = -1


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def frame(to, source, size=60, kind=0x88B5):
    return (mac(to) + mac(source) + struct.pack(">H", kind)).ljust(size, b"\0")


MAP_NORESERVE = 0x4000


def libc_map(fd, size):
    """Maps without a reservation, which Python's mmap cannot."""
    libc.mmap.restype = ctypes.c_void_p
    base = libc.mmap(None, ctypes.c_size_t(size), 3, 1 | MAP_NORESERVE, fd, ctypes.c_long(0))
    if base == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return base


def libc_unmap(base, size):
    libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(size))


def punch(fd, offset, length, hole):
    """Fills a part of a file with pages, or punches them out."""
    libc.fallocate(fd, 3 if hole else 0, ctypes.c_long(offset), ctypes.c_long(length))
