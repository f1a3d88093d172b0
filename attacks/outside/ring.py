"""A client of a ring port, and of the netmap socket: requests, rings, and the users that send them."""

import os
import socket
import struct

from . import vhost, words
from .daemon import Failure


def connect(path, timeout=5):
    k = socket.socket(socket.AF_UNIX)
    k.settimeout(timeout)
    k.connect(path)
    return k


def ring_ask(code, value=0, pipe=b"x", extra=0):
    return (b"ring" + struct.pack("<III", 3, code, value) + pipe.ljust(64, b"\0") + struct.pack("<II", extra, 0)).ljust(128, b"\0")


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


def place(k, verb, name):
    """A request at the netmap socket; its error number, and the place that it leads to."""
    k.sendall(struct.pack("<4sIII", b"vale", 1, verb, 0) + name.encode().ljust(64, b"\0") + b"\0" * 48)
    data = b""
    while len(data) < 512:
        data += k.recv(512 - len(data)) or b"\0" * 512
    return struct.unpack_from("<I", data, 8)[0], data[24:88].split(b"\0")[0].decode()


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
