"""A file whose server answers when it likes: the kernel's FUSE protocol, raw, over /dev/fuse.

The server is a process of its own: it answers what is needed to open the file, and reads never, so whoever touches the file's memory waits
for as long as the server lives; so does whoever asks for its attributes, unless told otherwise. Ending it (`close`) frees them all.
One that `answers` reads, writes and flushes as well does so until it is told to be silent.
"""

import ctypes
import errno
import multiprocessing
import os
import struct
import tempfile

from .daemon import Failure
from .vhost import libc

LOOKUP, FORGET, GETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH = 1, 2, 3, 14, 15, 16, 17, 18, 20, 25
INIT, OPENDIR, ACCESS, INTERRUPT, BATCH_FORGET = 26, 27, 34, 36, 42
MNT_DETACH = 2


def attributes(node, size):
    mode = 0o40755 if node == 1 else 0o100666
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0)


def serve(fuse, size, silent, answers):
    """Answers what is needed to open the file; once `silent` is set, no GETATTR either, or, if it `answers`, no more than before."""
    only(fuse)
    while True:
        try:
            request = os.read(fuse, (1 << 17) + 4096)
        except OSError:
            return
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        error, body = 0, b""
        if opcode == INIT:
            # 7.31; no flags; 128 KiB writes
            body = struct.pack("<IIIIHHIIHHI", 7, 31, 1 << 17, 0, 12, 10, 1 << 17, 1, 0, 0, 0).ljust(64, b"\0")
        elif opcode == LOOKUP:
            body = struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + attributes(2, size)
        elif opcode in (READ, WRITE, FSYNC) and answers and not silent.value:
            (count,) = struct.unpack_from("<I", request, 56) if opcode != FSYNC else (0,)
            body = bytes(count) if opcode == READ else struct.pack("<II", count, 0) if opcode == WRITE else b""
        elif opcode in (READ, WRITE, RELEASE, FSYNC) or silent.value and not answers and (node == 2 or opcode == STATFS):
            continue  # never
        elif opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue  # these have no answer
        elif opcode == GETATTR:
            body = struct.pack("<QII", 3600 if node == 1 or answers else 0, 0, 0) + attributes(node, size)
        elif opcode in (OPEN, OPENDIR):
            # FOPEN_DIRECT_IO where there is something to read: each read asks the server
            body = struct.pack("<QII", 1, int(answers and opcode == OPEN), 0)
        elif opcode == STATFS:
            body = struct.pack("<QQQQQIIII", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0).ljust(80, b"\0")
        elif opcode not in (ACCESS, FLUSH):
            error = -errno.ENOSYS
        try:
            os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError:
            return


def only(fuse):
    """A fork of the runner keeps no descriptor but this one: others wait for the ends of its pipes."""
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2 and int(number) != fuse:
            try:
                os.close(int(number))
            except OSError:
                pass


class Mounted:
    """A file system of one file, `name` in `folder`, that `serve(fuse, *args)` answers for in a process of its own."""

    def __init__(self, name, serve, *args):
        self.folder = tempfile.mkdtemp(prefix="sidecore-attack-fuse-")
        self.path = os.path.join(self.folder, name)
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other".encode()
        if libc.mount(b"attack", self.folder.encode(), b"fuse.attack", ctypes.c_ulong(6), options):
            error = os.strerror(ctypes.get_errno())
            os.close(fuse)
            os.rmdir(self.folder)
            raise Failure(f"cannot mount: {error}")
        self.server = multiprocessing.get_context("fork").Process(target=serve, args=(fuse, *args), daemon=True)
        self.server.start()
        os.close(fuse)  # now the server has the only one: with its end the kernel aborts the connection

    def end(self):
        if self.server.is_alive():
            self.server.kill()
            self.server.join()

    def close(self):
        self.end()
        libc.umount2(self.folder.encode(), MNT_DETACH)
        try:
            os.rmdir(self.folder)
        except OSError:
            pass


class Stalled(Mounted):
    """A mounted file `path` of `size` bytes that is never read to the end; without `opened`, nor opened, and it is not open here."""

    def __init__(self, size=4 << 20, silent=True, answers=False, opened=True):
        self.silent, self.file = multiprocessing.get_context("fork").Value("i", 0), -1
        super().__init__("memory", serve, size, self.silent, answers)
        try:
            if opened:
                self.file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise
        self.silent.value = int(silent)

    def close(self):
        """Aborts the connection: all waiting processes get an error."""
        self.end()
        if self.file >= 0:
            try:
                os.close(self.file)
            except OSError:
                pass  # FLUSH fails now; the descriptor is gone all the same
            self.file = -1
        super().close()
