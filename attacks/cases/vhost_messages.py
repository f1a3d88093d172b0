"""Messages of a vhost-user front end as attackers of other back ends have sent them: DPDK's CVEs as inputs, and their kin."""

import os
import struct

from outside import vhost
from outside.case import attack
from outside.inputs import BROADCAST, EVIL, each, served, up
from outside.vhost import USER, Refused


@attack()
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


@attack()
def mtu_of_a_vmm(stage):
    """A VMM asks for a larger MTU than its port was given."""
    stage.start(ports=["e=vhost-user:DIR/e.sock,switch=evil,mtu=1500"])
    protocol = vhost.P_REPLY_ACK | vhost.P_MTU | 1
    with stage.during():
        for mtu in (9000, 1501, 65535):
            e = vhost.Guest(stage.at("e.sock"), protocol=protocol)
            try:
                stage.notes[f"answer to {mtu}"] = e.front.acked(20, struct.pack("<Q", mtu))
            except OSError as error:
                stage.notes[f"answer to {mtu}"] = str(error)
            shown = stage.daemon.port("e")["state"]["mtu"]
            stage.check(shown == 1500, f"after NET_SET_MTU {mtu} the port's MTU is {shown}")
            e.close()
