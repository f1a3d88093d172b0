"""Messages and descriptors as attackers of other back ends have sent them: DPDK's vhost CVEs as inputs, and their kin."""

import os
import struct
import threading
import time

from outside import vfio, vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import pause
from outside.vhost import Guest, Refused, USER

EVIL = "02:00:00:00:ee:01"
TO = "02:00:00:00:ee:02"
BROADCAST = "ff:ff:ff:ff:ff:ff"


def each(stage, inputs, **more):
    """Each input to a fresh connection; the daemon and its neighbours are looked at behind every one."""
    names = [f"evil{i}" for i in range(6)]  # a port that was stopped may hold the next VMM off for a while
    ports = [f"{name}=vhost-user:DIR/{name}.sock,switch=evil" for name in names]
    stage.start(ports=["other=vhost-user:DIR/other.sock,switch=evil"] + ports, **more)
    other = Guest(stage.at("other.sock"), receive=128)
    stage.cleanup(other.close)
    stopped, turn = [], 0
    with stage.during():
        for send in inputs:
            name = send.__name__.strip("_").replace("_", " ")
            guest, began = None, time.monotonic()
            try:
                while guest is None:
                    turn += 1
                    try:
                        guest = Guest(stage.at(f"{names[turn % 6]}.sock"), start=False, receive=32, timeout=0.5,
                                      features=vhost.VERSION_1 | vhost.CSUM | vhost.HOST_TSO4 | vhost.INDIRECT)
                    except (Refused, OSError):
                        stage.alive()
                        if time.monotonic() - began > 20:
                            raise Failure("the ports take nobody in any more") from None
                guest.front.sock.settimeout(3)
                send(guest)
                guest.front.sync()
            except (Refused, TimeoutError, OSError):
                stopped.append(name)
            except Failure as failure:
                raise Failure(f"{name}: {failure}") from None
            finally:
                if guest:
                    guest.close()
            try:
                stage.progress(f"behind: {name}")
            except Failure as failure:
                raise Failure(f"{name}: {failure}") from None
            stage.control(f"behind: {name}")
            if time.monotonic() - began > 2:
                stage.notes[name] = f"{time.monotonic() - began:.1f} s"
    stage.notes["stopped"] = len(stopped), len(inputs)
    other.front.close()


def up(guest, regions=None, fds=None):
    """Everything as it should be."""
    guest.front.table(regions or [(0, guest.size, USER, 0)], fds or [guest.fd])
    guest.start(0, guest.rx)
    guest.start(1, guest.tx)


def served(guest, seconds=0.3):
    """A moment for the core to meet what is in the ring."""
    guest.tx.ring()
    end = time.monotonic() + seconds
    while time.monotonic() < end and guest.tx.used_index() != guest.tx.next and not guest.front.hung_up(0.01):
        pass


@attack("DPDK")
def messages(stage):
    """Descriptors too many or too few, repeated messages, offsets that overflow, sizes that lie."""
    def range_across_regions(g):  # CVE-2018-1059
        half = g.size // 2
        up(g, [(0, half, USER, 0), (half, half, USER + (1 << 40), half)], [g.fd, g.fd])
        g.tx.put(0, half - 64, 4096)
        g.tx.offer(0)
        served(g)

    def surplus_descriptors(g):  # CVE-2019-14818, CVE-2022-0669
        for _ in range(50):
            g.front.send(vhost.SET_VRING_NUM, struct.pack("<II", 0, 256), [g.fd] * 8)
        g.front.sync()

    def descriptors_too_many(g):
        g.front.sock.settimeout(2)
        g.front.send(vhost.GET_FEATURES, b"", [g.fd] * 253)
        g.front.answer(vhost.GET_FEATURES)

    def repeated_vring_num(g):  # CVE-2019-14818
        up(g)
        for i in range(2000):
            g.front.state(vhost.SET_VRING_NUM, 0, 256 if i % 2 else 128)

    def log_offset_overflow(g):  # CVE-2020-10722
        g.front.ask(vhost.SET_LOG_BASE, struct.pack("<QQ", 1 << 20, 0xFFFF_FFFF_FFF0_0000), [g.fd])
        up(g)

    def log_too_small(g):
        g.front.number(vhost.SET_FEATURES, vhost.VERSION_1 | vhost.LOG_ALL | vhost.PROTOCOL)
        g.front.ask(vhost.SET_LOG_BASE, struct.pack("<QQ", 1, 0), [vhost.memfd(4096)])
        up(g)
        g.send(vhost.frame(BROADCAST, EVIL))
        served(g)

    def index_cut_to_16_bits(g):  # CVE-2020-10723
        for request in (vhost.SET_VRING_NUM, vhost.SET_VRING_BASE, vhost.SET_VRING_ENABLE):
            g.front.state(request, 0x10001, 1)

    def kick_of_queue_255(g):
        up(g)
        g.front.send(vhost.SET_VRING_KICK, struct.pack("<Q", 0xFF), [g.tx.kick])

    def inflight_again_and_again(g):  # CVE-2020-10726
        for _ in range(200):
            g.front.ask(vhost.GET_INFLIGHT_FD, struct.pack("<QQHH", 0, 0, 2, 256).ljust(24, b"\0"))
            for fd in g.front.fds:
                os.close(fd)

    def inflight_of_65535_queues(g):  # CVE-2021-3839
        g.front.ask(vhost.GET_INFLIGHT_FD, struct.pack("<QQHH", 0, 0, 65535, 65535).ljust(24, b"\0"))

    def inflight_that_lies(g):
        fd = vhost.memfd(4096)
        g.front.send(vhost.SET_INFLIGHT_FD, struct.pack("<QQHH", 1 << 40, 1 << 50, 2, 256).ljust(24, b"\0"), [fd])
        os.close(fd)
        up(g)

    def table_beyond_the_file(g):
        g.front.table([(0, 1 << 30, USER, 0)], [g.fd])
        g.start(0, g.rx)
        g.start(1, g.tx)
        g.tx.put(0, (1 << 30) - 4096, 1000)
        g.tx.offer(0)
        served(g)

    def table_that_overflows(g):
        g.front.table([(1 << 63, (1 << 63) + 4096, USER, 0)], [g.fd])

    def table_with_overlap(g):
        g.front.table([(0, 1 << 20, USER, 0), (1 << 12, 1 << 20, USER + (1 << 40), 0)], [g.fd, g.fd])

    def table_of_a_pipe(g):
        r, w = os.pipe()
        try:
            g.front.table([(0, 1 << 20, USER, 0)], [r])
        finally:
            os.close(r)
            os.close(w)

    def table_without_descriptor(g):
        g.front.table([(0, 1 << 20, USER, 0)], [])

    def payload_that_lies(g):
        g.front.sock.sendall(struct.pack("<III", vhost.SET_MEM_TABLE, 1, 0xFFFF_FFFF) + b"x" * 64)
        raise Refused("not answered")

    def half_a_message(g):
        g.front.sock.sendall(struct.pack("<III", vhost.SET_MEM_TABLE, 1, 40) + b"x" * 8)
        raise Refused("not answered")

    def answers_never_read(g):
        g.front.sock.setblocking(False)
        try:
            for _ in range(100_000):
                g.front.send(vhost.GET_FEATURES)
        except BlockingIOError:
            pass
        g.front.sock.settimeout(5)
        raise Refused("not read")

    def rings_outside_memory(g):
        g.front.table([(0, g.size, USER, 0)], [g.fd])
        g.front.state(vhost.SET_VRING_NUM, 1, 256)
        g.front.send(vhost.SET_VRING_ADDR, struct.pack("<IIQQQQ", 1, 0, USER + g.size - 16, USER + g.size - 2, 0xFFFF_FFFF_FFFF_FFF0, 0))
        g.front.send(vhost.SET_VRING_KICK, struct.pack("<Q", 1), [g.tx.kick])
        g.front.state(vhost.SET_VRING_ENABLE, 1, 1)

    def ring_of_65535(g):
        g.front.table([(0, g.size, USER, 0)], [g.fd])
        for size in (65535, 3, 0):
            g.front.state(vhost.SET_VRING_NUM, 1, size)

    each(stage, [range_across_regions, surplus_descriptors, descriptors_too_many, repeated_vring_num, log_offset_overflow, log_too_small,
                 index_cut_to_16_bits, kick_of_queue_255, inflight_again_and_again, inflight_of_65535_queues, inflight_that_lies,
                 table_beyond_the_file, table_that_overflows, table_with_overlap, table_of_a_pipe, table_without_descriptor, payload_that_lies,
                 half_a_message, answers_never_read, rings_outside_memory, ring_of_65535])


@attack("1.2")
def odd_descriptors(stage):
    """Every kind of descriptor where another kind belongs."""
    import select
    import socket
    made = []

    def kinds():
        r, w = os.pipe()
        a, b = socket.socketpair()
        made.extend((r, w))
        stage.cleanup(a.close)
        stage.cleanup(b.close)
        poll = select.epoll()
        stage.cleanup(poll.close)
        yield "pipe", r
        yield "socket", a.fileno()
        yield "epoll", poll.fileno()
        for name, path, flags in (("zero", "/dev/zero", os.O_RDWR), ("null", "/dev/null", os.O_RDWR), ("folder", "/", os.O_RDONLY),
                                  ("path", "/", os.O_PATH), ("process", "/proc/self/status", os.O_RDONLY), ("full", "/dev/full", os.O_RDWR),
                                  ("terminals", "/dev/ptmx", os.O_RDWR | os.O_NOCTTY), ("program", "/proc/self/exe", os.O_RDONLY)):
            try:
                fd = os.open(path, flags)
            except OSError:
                continue
            made.append(fd)
            yield name, fd
        fd = vhost.memfd(4096)
        made.append(fd)
        yield "memory", fd
        fd = os.pidfd_open(os.getpid())
        made.append(fd)
        yield "process", fd
        fd = os.eventfd(0)
        made.append(fd)
        yield "eventfd", fd

    stage.cleanup(lambda: [os.close(fd) for fd in made])
    inputs = []
    for kind, fd in kinds():
        def as_kick(g, fd=fd):
            g.front.table([(0, g.size, USER, 0)], [g.fd])
            g.start(1, g.tx, kick=fd)
            g.start(0, g.rx, call=fd)
            g.send(vhost.frame(BROADCAST, EVIL))

        def as_memory(g, fd=fd):
            g.front.table([(0, 4096, USER, 0)], [fd])
            g.start(1, g.tx)

        def as_log(g, fd=fd):
            g.front.sock.settimeout(2)
            g.front.ask(vhost.SET_LOG_BASE, struct.pack("<QQ", 4096, 0), [fd])

        def as_inflight(g, fd=fd):
            g.front.send(vhost.SET_INFLIGHT_FD, struct.pack("<QQHH", 4096, 0, 2, 256).ljust(24, b"\0"), [fd])

        for function in (as_kick, as_memory, as_log, as_inflight):
            function.__name__ = f"{kind}_{function.__name__}"
            inputs.append(function)
    each(stage, inputs)


@attack("DPDK")
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


@attack("DPDK")
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


@attack("vfio")
def vfio_messages(stage):
    """vfio-user messages that lie about sizes, regions, maps and interrupts; registers with impossible values."""
    stage.start("e1000e:DIR/evil.sock")
    said = []

    def raw(data):
        client = vfio.Client(stage.at("evil.sock"), timeout=2)
        client.sock.sendall(data)
        return client

    def header(command, size, flags=0):
        return struct.pack("<HHIII", 9, command, size, flags, 0)

    def with_client(function):
        def run():
            client = vfio.Client(stage.at("evil.sock"), timeout=2)
            try:
                function(client)
            finally:
                client.close()
        run.__name__ = function.__name__
        return run

    def size_of_4_gigabytes(c):
        c.sock.sendall(header(vfio.DMA_MAP, 0xFFFF_FFFF))
        c.answer()

    def size_below_the_header(c):
        c.sock.sendall(header(vfio.DMA_MAP, 3))
        c.answer()

    def a_reply_instead(c):
        c.sock.sendall(header(vfio.DMA_MAP, 16, 1))
        c.answer()

    def read_of_a_gigabyte(c):
        c.ask(vfio.REGION_READ, struct.pack("<QII", 0, 0, 1 << 30))

    def write_beyond_the_region(c):
        c.ask(vfio.REGION_WRITE, struct.pack("<QII", 0xFFFF_FFFF_FFFF_FFFC, 0, 8) + b"x" * 8)

    def write_that_lies(c):
        c.ask(vfio.REGION_WRITE, struct.pack("<QII", 0, 0, 65536) + b"x" * 8)

    def region_77(c):
        c.read(0, 77)

    def map_that_overflows(c):
        fd = vhost.memfd(1 << 20)
        try:
            for offset, address, size in ((0, 0xFFFF_FFFF_FFFF_F000, 1 << 20), (0xFFFF_FFFF_FFFF_F000, 0, 1 << 20), (0, 0, 1 << 63), (0, 0, 0), (1, 1, 1)):
                try:
                    c.map(address, size, fd, offset)
                except Refused as e:
                    said.append(str(e))
        finally:
            os.close(fd)

    def same_map_twice(c):
        fd = vhost.memfd(1 << 20)
        try:
            c.map(0, 1 << 20, fd)
            c.map(1 << 12, 1 << 20, fd)
        finally:
            os.close(fd)

    def interrupts_beyond(c):
        for index, start, count in ((0, 0, 0xFFFF_FFFF), (2, 0xFFFF_FFFF, 2), (77, 0, 1), (2, 2040, 100)):
            try:
                c.ask(vfio.SET_IRQS, struct.pack("<IIIII", 20, 0x24, index, start, count))
            except Refused as e:
                said.append(str(e))

    def registers_of_all_ones(c):
        fd = vhost.memfd(1 << 20)
        try:
            c.map(0, 1 << 20, fd)
        finally:
            os.close(fd)
        for value in (0xFFFF_FFFF, 0x8000_0000, 0):
            for register in range(0, 0x6000, 4):
                if register != 0:  # CTRL would only reset it
                    c.write(register, value)

    def configuration_of_all_ones(c):
        for value in (0xFFFF_FFFF, 0):
            for at in range(0, 256, 4):
                c.write(at, value, vfio.CONFIG)
            for at in range(0, 0x4000, 4):
                c.write(at, value, 3)  # the table of the messages

    def rings_outside_memory(c):
        fd = vhost.memfd(1 << 20)
        try:
            c.map(0, 1 << 20, fd)
        finally:
            os.close(fd)
        c.write(4, 6, vfio.CONFIG, 2)
        c.write(vfio.TDBAL, 0xFFFF_FFF0)
        c.write(vfio.TDBAH, 0xFFFF_FFFF)
        c.write(vfio.TDLEN, 0xFFF80)
        c.write(vfio.TCTL, 2)
        c.write(vfio.TDT, 0xFFFF)
        c.write(vfio.RDBAL, 0xFFFF_FFF0)
        c.write(vfio.RDLEN, 0xFFF80)
        c.write(vfio.RCTL, 0x801A)
        c.write(vfio.RDT, 0xFFFF)

    with stage.during():
        for function in (size_of_4_gigabytes, size_below_the_header, a_reply_instead, read_of_a_gigabyte, write_beyond_the_region, write_that_lies,
                         region_77, map_that_overflows, same_map_twice, interrupts_beyond, registers_of_all_ones, configuration_of_all_ones, rings_outside_memory):
            name = function.__name__.replace("_", " ")
            for _ in range(60):
                try:
                    with_client(function)()
                    break
                except Refused as e:
                    said.append(str(e))
                    break
                except (TimeoutError, ConnectionError, OSError) as e:
                    said.append(str(e))
                    if isinstance(e, TimeoutError):
                        break
                    pause(0.1)
            if not stage.daemon.alive():
                raise Failure(f"{name}: the daemon has ended: {stage.daemon.ending()}")
            stage.progress(f"behind: {name}")
            stage.control(f"behind: {name}")
    stage.notes["said"] = sorted(set(said))
