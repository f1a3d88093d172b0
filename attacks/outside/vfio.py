"""A vfio-user client, and as much of an e1000 driver as an attack needs.

After QEMU's docs/interop/vfio-user.rst and Intel's manual of the 8254x.
"""

import json
import mmap
import os
import socket
import struct

from .vhost import Refused, send_fds, memfd

VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO, SET_IRQS = 1, 2, 3, 4, 5, 8
REGION_READ, REGION_WRITE = 9, 10
CONFIG = 7

CTRL, ICS, IMS, RCTL, TCTL = 0x0, 0xC8, 0xD0, 0x100, 0x400
RDBAL, RDBAH, RDLEN, RDH, RDT = 0x2800, 0x2804, 0x2808, 0x2810, 0x2818
TDBAL, TDBAH, TDLEN, TDH, TDT = 0x3800, 0x3804, 0x3808, 0x3810, 0x3818


class Client:
    def __init__(self, path, timeout=40.0, version=True):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout)
        self.sock.connect(path)
        self.id = 0
        if version:
            caps = json.dumps({"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1 << 20}}).encode() + b"\0"
            self.ask(VERSION, struct.pack("<HH", 0, 1) + caps)

    def close(self):
        self.sock.close()

    def send(self, command, payload=b"", fds=(), flags=0):
        self.id = self.id + 1 & 0xFFFF
        try:
            send_fds(self.sock, struct.pack("<HHIII", self.id, command, 16 + len(payload), flags, 0) + payload, list(fds))
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Refused("hung up") from e

    def exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                piece, _, _, _ = self.sock.recvmsg(count - len(data), 256)
            except ConnectionResetError as e:
                raise Refused("hung up") from e
            if not piece:
                raise Refused("hung up")
            data += piece
        return data

    def answer(self):
        _, _, size, flags, error = struct.unpack("<HHIII", self.exactly(16))
        payload = self.exactly(size - 16) if size > 16 else b""
        if flags & 0x20:
            raise Refused(os.strerror(error))
        return payload

    def with_fds(self):
        """An answer, and the descriptors that came along."""
        data, rights, _, _ = self.sock.recvmsg(1 << 16, 256)
        return data, [fd for _, _, raw in rights for (fd,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4])]

    def ask(self, command, payload=b"", fds=()):
        self.send(command, payload, fds)
        return self.answer()

    def map(self, address, size, fd, offset=0, flags=3):
        return self.ask(DMA_MAP, struct.pack("<IIQQQ", 32, flags, offset, address, size), [fd])

    def unmap(self, address, size):
        return self.ask(DMA_UNMAP, struct.pack("<IIQQ", 24, 0, address, size))

    def read(self, register, region=0, count=4):
        return int.from_bytes(self.ask(REGION_READ, struct.pack("<QII", register, region, count))[16:], "little")

    def write(self, register, value, region=0, count=4):
        self.ask(REGION_WRITE, struct.pack("<QII", register, region, count) + value.to_bytes(count, "little"))


class Nic:
    """An e1000 with a transmit and a receive ring in memory that is mapped at address 0."""

    def __init__(self, path, size=4 << 20, fd=None, ring=256, ring_at=0, receive=0, map_size=None):
        self.fd = memfd(size) if fd is None else fd
        self.memory = mmap.mmap(self.fd, size)
        self.size, self.count = size, ring
        self.client = Client(path)
        self.client.map(0, map_size or size, self.fd)
        self.client.write(4, 6, CONFIG, 2)  # memory space, bus master
        self.tx_ring, self.rx_ring = ring_at, ring_at + 16 * ring
        self.buffers = (self.rx_ring + 16 * ring + 4095) & ~4095
        self.tail = 0
        write = self.client.write
        write(TDBAL, self.tx_ring)
        write(TDBAH, 0)
        write(TDLEN, 16 * ring)
        write(TDH, 0)
        write(TDT, 0)
        write(TCTL, 0x2)
        if receive:
            for i in range(ring):
                struct.pack_into("<QQ", self.memory, self.rx_ring + 16 * i, self.buffers + 2048 * i, 0)
            write(RDBAL, self.rx_ring)
            write(RDBAH, 0)
            write(RDLEN, 16 * ring)
            write(RDH, 0)
            write(RDT, receive)
            write(RCTL, 0x2 | 0x8 | 0x10 | 0x8000)  # enable, promiscuous, broadcasts
        self.out = self.buffers + 2048 * ring

    def send(self, frame):
        slot = self.tail % self.count
        at = self.out + 2048 * slot
        self.memory[at:at + len(frame)] = frame
        struct.pack_into("<QHBBBBH", self.memory, self.tx_ring + 16 * slot, at, len(frame), 0, 0x0B, 0, 0, 0)
        self.tail = (slot + 1) % self.count
        self.client.write(TDT, self.tail)

    def close(self):
        self.client.close()
        try:
            self.memory.close()
        except (BufferError, ValueError):
            pass
        os.close(self.fd)


def pages(client):
    """The file behind the pages of BAR 0 that a guest may map."""
    client.send(GET_REGION_INFO, struct.pack("<IIIIQQ", 4096, 0, 0, 0, 0, 0))
    data, fds = client.with_fds()
    return fds
