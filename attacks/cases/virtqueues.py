"""Virtqueues whose descriptors, indices and offload facts cannot be."""

import struct
import threading
import time

from outside import vhost
from outside.case import attack
from outside.inputs import BROADCAST, EVIL, TO, each, served, up


@attack()
def rings(stage):
    """Chains that loop, lengths that overflow, headers in pieces, indices that jump."""
    def offered(g, *descriptors, heads=(0,)):
        up(g)
        for i, (addr, length, flags, following) in enumerate(descriptors):
            g.tx.put(i, addr, length, flags, following)
        g.tx.offer(*heads)
        served(g)

    at = 0x100000

    def chain_that_circles(g):  # 2026-1
        offered(g, (at, 64, vhost.NEXT, 1), (at, 64, vhost.NEXT, 0))

    def next_beyond_the_table(g):
        offered(g, (at, 64, vhost.NEXT, 60000))

    def head_beyond_the_table(g):
        offered(g, (at, 64, 0, 0), heads=(60000,))

    def zero_length_and_bad_address(g):  # CVE-2020-10725
        offered(g, (0xFFFF_FFFF_FFFF_F000, 0, 0, 0))

    def zero_length_in_a_chain(g):
        offered(g, (at, 12, vhost.NEXT, 1), (0xDEAD_0000_0000, 0, vhost.NEXT, 2), (at, 60, 0, 0))

    def header_in_twelve_pieces(g):  # CVE-2022-2132
        offered(g, *[(at + i, 1, vhost.NEXT, i + 1) for i in range(12)], (at, 60, 0, 0))

    def chain_not_longer_than_its_header(g):  # CVE-2022-2132
        offered(g, (at, 12, 0, 0))

    def chain_shorter_than_its_header(g):
        offered(g, (at, 3, 0, 0))

    def four_gigabytes(g):
        offered(g, (at, 0xFFFF_FFFF, 0, 0))

    def address_that_wraps(g):
        offered(g, (0xFFFF_FFFF_FFFF_FFFF, 2, 0, 0))

    def writable_to_be_sent(g):
        offered(g, (at, 100, vhost.WRITE, 0))

    def indirect_in_indirect(g):
        struct.pack_into("<QIHH", g.memory, 0x80000, 0x80000, 16, vhost.INDIRECT_FLAG, 0)
        offered(g, (0x80000, 16, vhost.INDIRECT_FLAG, 0))

    def indirect_of_odd_length(g):
        offered(g, (0x80000, 17, vhost.INDIRECT_FLAG, 0))

    def indirect_of_4_gigabytes(g):
        offered(g, (0x80000, 0xFFFF_FFF0, vhost.INDIRECT_FLAG, 0))

    def indirect_that_circles(g):
        struct.pack_into("<QIHH", g.memory, 0x80000, at, 64, vhost.NEXT, 0)
        offered(g, (0x80000, 16, vhost.INDIRECT_FLAG, 0))

    def index_that_jumps(g):
        up(g)
        g.tx.index(30000)
        served(g)

    def index_back(g):
        up(g)
        g.send(vhost.frame(BROADCAST, EVIL))
        served(g)
        g.tx.index(0)
        served(g, 0.1)

    def receive_ring_readable(g):
        up(g)
        for i in range(32):
            g.rx.put(i, at, 2048, 0)
        g.rx.offer(*range(32))
        g.send(vhost.frame(BROADCAST, EVIL))
        served(g)

    def receive_into_its_own_ring(g):
        up(g)
        for i in range(32):
            g.rx.put(i, g.rx.desc, 4096, vhost.WRITE)
        g.send(vhost.frame(BROADCAST, EVIL))
        served(g)

    each(stage, [chain_that_circles, next_beyond_the_table, head_beyond_the_table, zero_length_and_bad_address, zero_length_in_a_chain,
                 header_in_twelve_pieces, chain_not_longer_than_its_header, chain_shorter_than_its_header, four_gigabytes, address_that_wraps,
                 writable_to_be_sent, indirect_in_indirect, indirect_of_odd_length, indirect_of_4_gigabytes, indirect_that_circles,
                 index_that_jumps, index_back, receive_ring_readable, receive_into_its_own_ring])


@attack()
def offloads(stage):
    """Offload facts that cannot be: segments of no size, checksums beyond the frame, headers longer than it."""
    def headers():
        for flags in (0, 1, 2, 3, 0xFF):
            for kind in (0, 1, 3, 4, 5, 0x81, 0xFF):
                for hdr, gso, start, offset in ((54, 0, 34, 16), (0, 1, 34, 16), (54, 1, 34, 16), (65535, 65535, 65535, 65535), (54, 1460, 65535, 16),
                                                (54, 1460, 34, 65535), (10, 8, 14, 6), (54, 1460, 60, 0)):
                    yield struct.pack("<BBHHHHH", flags, kind, hdr, gso, start, offset, 0)

    def tcp(size):
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, (size - 14) & 0xFFFF, 1, 0, 64, 6, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
        return (vhost.mac(TO) + vhost.mac(EVIL) + b"\x08\x00" + ip + struct.pack(">HHIIBBHHH", 1, 2, 3, 4, 0x50, 0x10, 99, 0, 0)).ljust(size, b"z")

    def every_header(g):
        up(g)
        for size in (14, 40, 60, 1900):
            for header in headers():
                g.send(tcp(1900)[:size], header)
                if g.tx.next % 128 == 0:
                    served(g)
        served(g)

    def facts_that_change(g):  # the double fetch behind CVE-2024-11614's repair
        up(g)
        stop = threading.Event()
        slots = [g.out + 2048 * i for i in range(g.tx.size)]
        good, bad = struct.pack("<BBHHHHH", 1, 1, 54, 1460, 34, 16, 0), struct.pack("<BBHHHHH", 1, 1, 65535, 0, 65535, 65535, 65535)

        def change():
            while not stop.is_set():
                for at in slots:
                    g.memory[at:at + 12] = bad
                for at in slots:
                    g.memory[at:at + 12] = good

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(40):
                for _ in range(64):
                    g.send(tcp(1900), good)
                served(g)
        finally:
            stop.set()
            thread.join()

    def descriptors_that_change(g):
        up(g)
        stop = threading.Event()

        def change():
            while not stop.is_set():
                for i in range(g.tx.size):
                    g.tx.put(i, 0xFFFF_0000_0000, 0xFFFF_FFFF, vhost.NEXT, i)
                for i in range(g.tx.size):
                    g.tx.put(i, g.out, 100)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(400):
                g.tx.offer(g.tx.next % g.tx.size)
                served(g, 0.02)
                if g.front.hung_up(0):
                    break
        finally:
            stop.set()
            thread.join()

    each(stage, [every_header, facts_that_change, descriptors_that_change])


@attack(most=True)
def empty_descriptors(stage):
    """Frames of 14 bytes whose indirect tables have 255 descriptors of no length behind them."""
    stage.start(ports=["e=vhost-user:DIR/e.sock,switch=evil"])
    guest = vhost.Guest(stage.at("e.sock"), features=vhost.VERSION_1 | vhost.INDIRECT, size=48 << 20, start=False, ring=8192)
    stage.cleanup(guest.close)
    q, size = guest.tx, guest.tx.size
    frame = b"\0" * 12 + vhost.frame(EVIL, EVIL, 14)
    guest.memory[8 << 20:(8 << 20) + len(frame)] = frame
    table = b"".join(struct.pack("<QIHH", 8 << 20, 0 if k else 26, 1 if k < 255 else 0, (k + 1) % 256) for k in range(256))
    for i in range(size):
        struct.pack_into("<H", guest.memory, q.avail + 4 + 2 * i, i)
        at = (16 << 20) + i % 4096 * 4096
        guest.memory[at:at + 4096] = table
        q.put(i, at, 4096, vhost.INDIRECT_FLAG)
    guest.front.table([(0, guest.size, vhost.USER, 0)], [guest.fd])
    guest.start(0, guest.rx)
    guest.start(1, q)
    guest.front.sync()
    before = stage.daemon.port("e")["counters"]
    with stage.during():
        end = time.monotonic() + stage.seconds
        while time.monotonic() < end:
            q.index(q.used_index() + size)
            q.ring()
    after = stage.daemon.port("e")["counters"]
    frames, batches = (after[name] - before[name] for name in ("in_frames", "batches"))
    stage.notes.update(frames=frames, batches=batches)
    stage.check(frames > 0, "nothing was sent")
    stage.check(frames <= 20 * batches, f"{frames / max(batches, 1):.0f} frames of 256 descriptors a batch")
    guest.front.close()
