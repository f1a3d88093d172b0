"""As much of a ptnet driver as an attack needs: two vfio-user clients, blocks in guest memory, and rings in the memory device.

After the registers and the communication status block of the published drivers.
"""

import mmap
import os
import struct

from . import words
from .vfio import CONFIG, GET_REGION_INFO, Client
from .vhost import Refused, memfd

PTFEAT, PTCTL, NIFP_OFS, NUM_TX = 0x00, 0x04, 0x18, 0x1C
GH_BAH, GH_BAL, HG_BAH, HG_BAL, KICKS = 0x34, 0x38, 0x3C, 0x40, 0x80
CREATE, DELETE = 1, 2
GUEST, HOST = 4096, 8192
MORE = 0x20


class Memory:
    """The memory device: its conversation, and its BAR as it is mapped."""

    def __init__(self, path):
        self.client = Client(path)
        self.client.write(4, 3, CONFIG, 2)
        # The whole answer: fixed part, one capability, one area; and the file.
        self.client.send(GET_REGION_INFO, struct.pack("<IIIIQQ", 64, 0, 1, 0, 0, 0))
        data, fds = self.client.with_fds()
        self.size = struct.unpack_from("<Q", data, 16 + 16)[0]
        self.fd = fds[0]
        self.map = mmap.mmap(self.fd, self.size)


class Nic:
    """A NIC with blocks at `GUEST` and `HOST` of memory that is mapped at address 0."""

    def __init__(self, path, size=1 << 20, create=True):
        self.fd = memfd(size)
        self.memory = mmap.mmap(self.fd, size)
        self.size = size
        self.client = Client(path)
        self.device = Memory(path + ".mem")
        self.client.map(0, size, self.fd)
        self.client.write(4, 7, CONFIG, 2)
        self.client.write(PTFEAT, 0)
        self.pairs = self.client.read(NUM_TX)
        self.interface = self.client.read(NIFP_OFS)
        self.blocks()
        self.rings = [self.ring(place) for place in range(2 * (self.pairs + 1))]
        self.head = 0
        if create and self.command(CREATE) != 0:
            raise Refused("CREATE")

    def blocks(self, guest=GUEST, host=HOST):
        for high, low, at in ((GH_BAH, GH_BAL, guest), (HG_BAH, HG_BAL, host)):
            self.client.write(high, at >> 32)
            self.client.write(low, at & 0xFFFFFFFF)

    def command(self, command):
        self.client.write(PTCTL, command)
        return self.client.read(PTCTL)

    def ring(self, place):
        """Where ring `place` of the interface's list is, its slots, and where buffer 0 is."""
        offset = struct.unpack_from("<q", self.device.map, self.interface + 56 + 8 * place)[0]
        at = self.interface + offset
        bufs, slots, size = struct.unpack_from("<qII", self.device.map, at)
        return at, slots, at + bufs, size

    def index(self, ring, value):
        """The guest's head and cur of ring `ring`: those that send, then those that receive."""
        # `cur` first: between the two the guest has given up no more than before.
        for at in (4, 0):
            words.put(self.memory, GUEST + 64 * ring + at, value)

    def slot(self, place, slot, index, length, flags=0):
        struct.pack_into("<IHHQ", self.device.map, self.rings[place][0] + 256 + 16 * slot, index, length, flags, 0)

    def send(self, frame):
        """One honest frame by the first ring."""
        at, slots, bufs, size = self.rings[0]
        index = struct.unpack_from("<I", self.device.map, at + 256 + 16 * self.head)[0]
        self.device.map[bufs + index * size:bufs + index * size + len(frame)] = frame
        self.slot(0, self.head, index, len(frame))
        self.head = (self.head + 1) % slots
        self.index(0, self.head)
        self.client.write(KICKS, 0)

    def close(self):
        self.client.close()
        self.device.client.close()
        for what in (self.memory, self.device.map):
            try:
                what.close()
            except (BufferError, ValueError):
                pass
        for fd in (self.fd, self.device.fd):
            os.close(fd)
