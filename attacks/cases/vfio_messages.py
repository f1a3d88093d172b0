"""Messages of a vfio-user client that lie, and clients of both protocols that say half of one, or nothing."""

import json
import os
import struct

from outside import vfio, vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import pause
from outside.ring import connect
from outside.vhost import Guest, Refused

BROADCAST = "ff:ff:ff:ff:ff:ff"
FRAME = vhost.frame(BROADCAST, "02:00:00:00:ee:01")


@attack()
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


@attack(most=True)
def texts_of_a_vmm(stage):
    """A vfio-user client's VERSION has texts that a terminal obeys where numbers belong."""
    stage.start("e1000:DIR/evil.sock")
    odd = "\x7f\x80\x9b31m\x9f\u202a\u202e\u2066\u2069\u200b\u2028\ufeff"
    times = 0
    with stage.during():
        for text in (odd, odd * 100, "x" * 3000):
            c = vfio.Client(stage.at("evil.sock"), version=False)
            caps = json.dumps({"capabilities": {"max_msg_fds": text}}, ensure_ascii=False).encode() + b"\0"
            try:
                c.ask(vfio.VERSION, struct.pack("<HH", 0, 1) + caps)
            except vhost.Refused:
                pass
            c.close()
            times += 1
            until(lambda: len(stage.daemon.log("max_msg_fds")) == times, 20, "its fault in the log")
            said = until(lambda: stage.daemon.port("evil")["state"]["detail"].partition("last fault: ")[2], 20, "its fault")
            stage.check("max_msg_fds" in said and len(said) <= 4096, f"{len(said)} characters: {said[:200]!r}")
            for where, lines in (("show", [said]), ("the log", stage.daemon.lines)):
                bad = {hex(ord(ch)) for line in lines for ch in line if not ch.isprintable()}
                stage.check(not bad, f"in {where}: {bad}")


@attack()
def silent_clients(stage):
    """Clients connect to ports of both protocols and say nothing; the VMMs that come 10 s later are served."""
    stage.start(ports=["v=vhost-user:DIR/v.sock,switch=evil", "g=e1000:DIR/g.sock,switch=evil"])
    with stage.during():
        quiet = [connect(stage.at(f"{n}.sock"), 60) for n in "vg"]
        for k in quiet:
            try:
                stage.check(k.recv(1) == b"", "it was answered")
            except TimeoutError:
                stage.check(False, "a client that says nothing keeps its port")
            k.close()
        for n in "vg":
            until(lambda: stage.conversation(n)["silent"] == 1, 20, f"a silent client counted at port {n}")
            until(lambda: "last fault: no_" in stage.daemon.port(n)["state"]["detail"], 20, f"a word about it at port {n}")
        vhost.Guest(stage.at("v.sock")).close()
        vfio.Client(stage.at("g.sock")).close()


@attack()
def messages_that_stop(stage):
    """VMMs stop in the middle of a message's head or of its body, and go on waiting: their port is free for the next one."""
    stage.start(ports=["v=vhost-user:DIR/v.sock,switch=evil", "g=e1000:DIR/g.sock,switch=evil"])
    number = struct.pack("<III", vhost.SET_VRING_NUM, 1, 8) + struct.pack("<II", 0, 256)
    info = struct.pack("<HHIIIIIII", 2, vfio.GET_INFO, 32, 0, 0, 16, 0, 0, 0)
    with stage.during():
        for name, message, head in (("v", number, 12), ("g", info, 16)):
            for end in (1, head - 1, head, len(message) - 1):
                guest = Guest(stage.at("v.sock")) if name == "v" else None
                client = guest.front if guest else vfio.Client(stage.at("g.sock"))
                client.sock.settimeout(60)
                client.sock.sendall(message[:end])
                try:
                    stage.check(client.sock.recv(1) == b"", f"{name}: {end} bytes of a message were answered")
                except ConnectionResetError:
                    pass
                except TimeoutError:
                    raise Failure(f"{name}: a VMM that stops behind {end} bytes of a message keeps its port") from None
                (guest or client).close()
        guest = Guest(stage.at("v.sock"))
        guest.send(FRAME)
        until(guest.tx.used_index, 10, "an honest VMM's frame")
        guest.close()
        vfio.Client(stage.at("g.sock")).close()
