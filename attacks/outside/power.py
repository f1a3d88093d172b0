"""A backing file on a disk that can lose its power: a FUSE server that knows what was written and what lasts.

What is written can be read at once, and lasts from the next FSYNC on, or at once if it was written so (O_DSYNC). `durable` is what a machine would find after a power cut now. The
server is a process of its own and answers one request after the other, so what it has answered is in what it says.
"""

import errno
import mmap
import multiprocessing
import os
import struct

from .fuse import ACCESS, BATCH_FORGET, FLUSH, FORGET, FSYNC, GETATTR, INIT, INTERRUPT, LOOKUP, OPEN, OPENDIR, READ, RELEASE, STATFS, WRITE, Mounted, attributes, only

FALLOCATE, RELEASEDIR = 43, 29
DIRECT_IO = 1
MOST = 1 << 17


def serve(fuse, size, pages, syncs):
    """Until it is killed. `pages` has what is written, then what lasts."""
    only(fuse)
    while True:
        try:
            request = os.read(fuse, MOST + 4096)
        except OSError:
            return
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        rest = request[40:]
        error, body = 0, b""
        if opcode == INIT:
            body = struct.pack("<IIIIHHIIHHI", 7, 31, MOST, 0, 12, 10, MOST, 1, 0, 0, 0).ljust(64, b"\0")
        elif opcode == LOOKUP:
            body = struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + attributes(2, size)
        elif opcode == READ:
            _, at, count = struct.unpack_from("<QQI", rest)
            body = pages[at:min(at + count, size)]
        elif opcode == WRITE:
            _, at, count, _, _, flags = struct.unpack_from("<QQIIQI", rest)
            data = rest[40:40 + count]
            if at + count > size or len(data) != count:
                error = -errno.EFBIG
            else:
                pages[at:at + count] = data
                if flags & os.O_DSYNC:
                    pages[size + at:size + at + count] = data
                body = struct.pack("<II", count, 0)
        elif opcode == FALLOCATE:
            _, at, count = struct.unpack_from("<QQQ", rest)
            count = max(0, min(count, size - at))
            pages[at:at + count] = bytes(count)
        elif opcode == FSYNC:
            pages[size:2 * size] = pages[:size]
            syncs.value += 1
        elif opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue  # these have no answer
        elif opcode == GETATTR:
            body = struct.pack("<QII", 3600, 0, 0) + attributes(node, size)
        elif opcode in (OPEN, OPENDIR):
            body = struct.pack("<QII", 1, DIRECT_IO if opcode == OPEN else 0, 0)
        elif opcode == STATFS:
            body = struct.pack("<QQQQQIIII", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0).ljust(80, b"\0")
        elif opcode not in (ACCESS, FLUSH, RELEASE, RELEASEDIR):
            error = -errno.ENOSYS
        try:
            os.write(fuse, struct.pack("<IiQ", 16 + (0 if error else len(body)), error, unique) + (b"" if error else body))
        except OSError:
            return


class Platter(Mounted):
    """A mounted file `path` of `size` bytes, zeroes at first."""

    def __init__(self, size):
        self.size, self.pages = size, mmap.mmap(-1, 2 * size)
        self.syncs = multiprocessing.get_context("fork").Value("Q", 0)
        super().__init__("image", serve, size, self.pages, self.syncs)

    def durable(self, at, count):
        """What would be found after a power cut now."""
        return self.pages[self.size + at:self.size + at + count]
