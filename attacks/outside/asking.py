"""The broker's socket in the hands of an attacker that has taken the daemon over: requests that the daemon itself would not make.

Records as the daemon's: eight words of the machine's own order (what, number, bytes of text, five arguments) and 4096 bytes of text.
"""

import ctypes
import os
import socket
import struct

from .daemon import Failure

WORD, DONE = 0x73636272 << 32, 0x73636272 << 32 | 0x100
TEXT = 4096
LISTEN, REMOVE, CALL, HOLD, FIND, TAP, PACKET, XDP = range(1, 9)
MTU, UP, JOURNAL, JOURNAL_AT = range(12, 16)
CONFIG, PROGRAM, ACCOUNTS, DOOR = range(18, 22)
INSIDE, TAP_IN, TAP_OUT, MTU_IN, ADDRESS_IN = range(23, 28)
PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


def stolen(pid, number):
    """A duplicate of descriptor `number` of process `pid`."""
    process = os.pidfd_open(pid)
    try:
        got = LIBC.syscall(PIDFD_GETFD, process, number, 0)
        if got < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"pidfd_getfd: {os.strerror(error)}")
        return got
    finally:
        os.close(process)


class Answer:
    """What the broker says: whether it did it, a text, and a descriptor, if any."""

    def __init__(self, data, fds):
        what, self.number, length, *self.words = struct.unpack_from("8Q", data)
        self.done, self.fds = what == DONE, fds
        self.text = data[64:64 + length].decode(errors="replace")

    def __repr__(self):
        why = self.text or (os.strerror(self.words[0]) if self.words[0] else "")
        return f"done, with {len(self.fds)} descriptors" if self.done else f"refused: {why}"

    def close(self):
        for fd in self.fds:
            os.close(fd)


class Broker:
    """The daemon's end of the line to its broker."""

    def __init__(self, daemon):
        self.last = 1 << 40
        for name in os.listdir(f"/proc/{daemon.pid}/fd"):
            try:
                if not os.readlink(f"/proc/{daemon.pid}/fd/{name}").startswith("socket:"):
                    continue
                self.socket = socket.socket(fileno=stolen(daemon.pid, int(name)))
            except FileNotFoundError:
                continue
            except PermissionError:
                raise Failure("no descriptors can be taken from a process here") from None
            is_pair = self.socket.family == socket.AF_UNIX and self.socket.type & 0xF == socket.SOCK_SEQPACKET
            if is_pair and self.is_broker():
                return
            self.socket.close()
        raise Failure("the daemon has no line to a broker")

    def is_broker(self):
        self.socket.settimeout(2)
        try:
            answer = self.ask(ACCOUNTS)
        except (OSError, struct.error):
            return False
        answer.close()
        return answer.done and len(answer.fds) == 1

    def ask(self, what, text=b"", words=(), fds=()):
        self.last += 1
        text = text.encode() if isinstance(text, str) else text
        words = (list(words) + [0] * 5)[:5]
        record = struct.pack("8Q", WORD | what, self.last, len(text), *words) + text.ljust(TEXT, b"\0")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        self.socket.sendmsg([record], rights)
        data, got, _, _ = self.socket.recvmsg(2 * TEXT, socket.CMSG_SPACE(16))
        return Answer(data, [fd for _, _, raw in got for (fd,) in struct.iter_unpack("i", raw)])

    def close(self):
        self.socket.close()
