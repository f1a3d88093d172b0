"""A guest that is a host on a network of a router: it sends packets and lies, and answers requests for its addresses.

After RFC 826 (ARP), 791, 8200, 4861.
"""

import socket
import struct

from .vhost import NEXT, Guest, mac

ARP, IPV4, IPV6 = 0x0806, 0x0800, 0x86DD
BUFFERS = 128
EVIL, HONEST = "02:00:00:00:ee:01", "02:00:00:00:ee:02"


def four(text):
    return socket.inet_pton(socket.AF_INET, text)


def six(text):
    return socket.inet_pton(socket.AF_INET6, text)


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def ether(to, source, kind, payload):
    return (to + source + struct.pack(">H", kind) + payload).ljust(60, b"\0")


def arp(operation, source, address, asked, to=b"\xff" * 6):
    """Station `source` with `address` asks for `asked`, or answers it."""
    whom = bytes(6) if operation == 1 else to
    return ether(to, source, ARP, struct.pack(">HHBBH", 1, IPV4, 6, 4, operation) + source + address + whom + asked)


def packet(source, to, payload, protocol=17, ttl=64):
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, ttl, protocol, 0) + source + to
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def datagram(data):
    return struct.pack(">HHHH", 1000, 2000, 8 + len(data), 0) + data


def to_port(port):
    """A datagram, or as much of a segment of TCP, to it."""
    return struct.pack(">HHHH", 50_000, port, 20, 0) + bytes(12)


def optioned(source, to, payload, protocol, ttl, options):
    """An IPv4 packet with options: a multiple of four bytes."""
    head = struct.pack(">BBHHHBBH", 0x45 + len(options) // 4, 0, 20 + len(options) + len(payload), 1, 0, ttl, protocol, 0) + source + to + options
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def packet6(source, to, payload, following=17, hops=64):
    return struct.pack(">IHBB", 0x60000000, len(payload), following, hops) + source + to + payload


def solicitation(station, source, target, router):
    """A Neighbor Solicitation to `target` itself: `source` says that it is behind `station`."""
    body = struct.pack(">BBHI", 135, 0, 0, 0) + target + b"\1\1" + station
    pseudo = source + target + struct.pack(">II", len(body), 58)
    body = body[:2] + struct.pack(">H", checksum(pseudo + body)) + body[4:]
    return ether(router, station, IPV6, packet6(source, target, body, 58, 255))


class Host:
    """A host at port `name`: `addresses` (IPv4, as bytes) are those that it answers for."""

    def __init__(self, stage, name, station, addresses=()):
        self.station, self.addresses = mac(station), set(addresses)
        self.guest = guest = Guest(stage.at(f"{name}.sock"), receive=BUFFERS)
        stage.cleanup(guest.close)
        self.seen = self.asked = 0

    def send(self, *frames):
        """As fast as the daemon takes them."""
        tx = self.guest.tx
        for frame in frames:
            while tx.next - tx.used_index() & 0xFFFF >= tx.size - 1:
                tx.ring()
            self.guest.send(frame)

    def come(self):
        """The frames that have come, but for questions, which are answered."""
        guest, rx, frames = self.guest, self.guest.rx, []
        while rx.used_index() != self.seen & 0xFFFF:
            index, size = struct.unpack_from("<II", guest.memory, rx.used + 4 + 8 * (self.seen % rx.size))
            at = guest.buffers + 2048 * index
            frame = guest.memory[at + 12:at + size]
            self.seen += 1
            rx.offer(index)
            if not self.answer(frame):
                frames.append(frame)
        rx.ring()
        return frames

    def answer(self, frame):
        if frame[12:14] != struct.pack(">H", ARP) or frame[20:22] != b"\0\1":
            return False
        self.asked += 1
        if frame[38:42] in self.addresses:
            self.send(arp(2, self.station, frame[38:42], frame[28:32], frame[6:12]))
        return True


def interfaces(stage):
    """Of each port of a router its station address and its link-local address there."""
    routers = stage.daemon.ask("GET", "/v1/routers")["routers"]
    return {i["port"]: (mac(i["mac"]), socket.inet_pton(socket.AF_INET6, i["link_local"])) for r in routers for i in r["interfaces"]}


class Pump:
    """A guest that offers the same frames again as soon as they were taken, each in `pieces`: a flood for one word's price.

    A process of its own may take its turns while this one changes the frames.
    """

    def __init__(self, stage, name, frames, pieces=1, ring=16384):
        self.guest = guest = Guest(stage.at(f"{name}.sock"), 64 << 20, ring=ring)
        stage.cleanup(guest.close)
        self.pieces, self.count, self.sizes = pieces, ring // pieces, {}
        tx = guest.tx
        for slot in range(ring):
            struct.pack_into("<H", guest.memory, tx.avail + 4 + 2 * slot, slot % self.count * pieces)
        self.fill(frames)

    def fill(self, frames):
        """Has it send these, as often as there is room."""
        guest = self.guest
        for n in range(self.count):
            data, at = bytes(12) + frames[n % len(frames)], guest.out + 2048 * n
            guest.memory[at:at + len(data)] = data
            # A descriptor that is being written is a lie.
            if self.sizes.get(n) == len(data):
                continue
            self.sizes[n] = len(data)
            # Behind the header of virtio a few bytes each, so that the frame's head is in several.
            sizes = [22] + [14] * (self.pieces - 2) if self.pieces > 1 else []
            sizes.append(len(data) - sum(sizes))
            for piece, size in enumerate(sizes):
                slot = n * self.pieces + piece
                last = piece + 1 == self.pieces
                guest.tx.put(slot, at, size, 0 if last else NEXT, 0 if last else slot + 1)
                at += size

    def turn(self):
        """Offers what was taken again."""
        tx = self.guest.tx
        tx.index(tx.used_index() + self.count)
        tx.ring()

    def scribble(self, chance, bytes_each=64):
        """Changes a byte of some frames, whatever their receiver."""
        for _ in range(16):
            at = self.guest.out + 2048 * chance.randrange(self.count) + 12 + chance.randrange(bytes_each)
            self.guest.memory[at] = chance.randrange(256)
