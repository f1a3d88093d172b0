"""The broker's socket in the hands of an attacker that has taken the daemon over: requests that the daemon itself would not make.

Records as the daemon's: two words of the machine's own order (what, number) and a text, which is JSON.
"""

import ctypes
import json
import os
import socket
import struct

from .daemon import Failure

WORD = 0x73636272 << 32
REQUEST, DONE = WORD | 1, WORD | 2
LONGEST = 1 << 14
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
        what, self.number = struct.unpack_from("2Q", data)
        self.done, self.fds, said = what == DONE, fds, json.loads(data[16:])
        self.text, self.errno = said["text"], said.get("errno")

    def __repr__(self):
        why = os.strerror(self.errno) if self.errno else self.text
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
            answer = self.ask("Accounts", groups=False)
        except (OSError, ValueError, struct.error):
            return False
        answer.close()
        return answer.done and len(answer.fds) == 1

    def ask(self, what, **fields):
        """Asks for `what`, whose fields come in the order in which the daemon writes them."""
        self.last += 1
        text = json.dumps({what: fields}, separators=(",", ":"), ensure_ascii=False)
        self.socket.send(struct.pack("2Q", REQUEST, self.last) + text.encode())
        data, got, _, _ = self.socket.recvmsg(LONGEST, socket.CMSG_SPACE(16))
        return Answer(data, [fd for _, _, raw in got for (fd,) in struct.iter_unpack("i", raw)])

    def close(self):
        self.socket.close()
