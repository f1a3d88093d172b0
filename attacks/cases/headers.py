"""Packets whose headers a router must not pass on."""

import random
import socket
import struct
import subprocess

from outside.case import attack
from outside.daemon import http, until
from outside.flow import pause
from outside.host import EVIL, HONEST, IPV4, IPV6, Host, checksum, datagram, ether, four, interfaces, optioned, packet, packet6, six, solicitation
from outside.namespaces import Namespace, drained, inside
from outside.vhost import mac


class Kernel:
    """Linux as a router between two interfaces in a namespace of its own."""

    def __init__(self, stage):
        self.space = Namespace(stage, "kernel")
        ip = lambda *what: subprocess.run(["ip", "-n", self.space.name, *what], check=True)
        for name, address, peer in (("ka", "10.1.0.1/24", "kb"), ("kc", "10.2.0.1/24", "kd")):
            ip("link", "add", name, "type", "veth", "peer", "name", peer)
            ip("address", "add", address, "dev", name)
            for each in (name, peer):
                ip("link", "set", each, "up")
        ip("link", "set", "lo", "up")
        ip("-6", "address", "add", "2001:db8:1::1/64", "dev", "ka", "nodad")
        ip("-6", "address", "add", "2001:db8:2::1/64", "dev", "kc", "nodad")
        ip("neighbour", "add", "10.2.0.9", "lladdr", HONEST, "dev", "kc", "nud", "permanent")
        ip("neighbour", "add", "2001:db8:2::9", "lladdr", HONEST, "dev", "kc", "nud", "permanent")
        settings = {"ipv4/ip_forward": 1, "ipv6/conf/all/forwarding": 1, "ipv4/conf/all/rp_filter": 0, "ipv4/conf/ka/rp_filter": 0, "ipv4/conf/all/accept_source_route": 0, "ipv4/conf/ka/accept_source_route": 0}
        for key, value in settings.items():
            inside(self.space, "sh", "-c", f"echo {value} > /proc/sys/net/{key}")
        shown = inside(self.space, "ip", "-o", "link", "show", "ka")
        self.station = mac(shown.split("link/ether ")[1].split()[0])

        def opened(name):
            def make():
                it = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(3))
                it.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
                it.bind((name, 3))
                return it
            it = self.space.inside(make)
            stage.cleanup(it.close)
            return it
        self.into, self.out = opened("kb"), opened("kd")


def odd_headers(chance, count):
    """IPv4 and IPv6 packets to 10.2.0.9 and 2001:db8:2::9 with something odd in them, each with a number in a field that no router changes."""
    for n in range(count):
        body = struct.pack(">HHHH", 1000, 2000, 8 + 32, 0) + chance.randbytes(32)
        if n % 3 == 2:
            source = chance.choice([six("2001:db8:1::9")] * 12 + [six(it) for it in ("::", "::1", "ff02::9", "2001:db8:1::1", "2001:db8:2::1", "2001:db8:7::7", "::ffff:10.1.0.9")])
            to = six("2001:db8:2::9")
            following, headers = chance.choice(((17, b""), (17, b""), (60, bytes([17, 0, 1, 4]) + bytes(4)), (44, bytes([17, 0, 0, 0]) + b"frag"), (59, b""), (253, b"")))
            payload = headers + body
            length = len(payload) + chance.choice((0,) * 12 + (1, -1, -len(payload), 8, -8, 1000))
            first = chance.choice((0x60,) * 9 + (0x6F, 0x40, 0x50, 0x00))
            # The flow label (RFC 8200 §3).
            head = bytes([first, chance.choice((0, 0x20, 0xF0))]) + struct.pack(">HHBB", n, max(0, length), following, chance.choice((64, 64, 255, 2, 1, 0))) + source + to
            yield IPV6, head + payload + bytes(chance.choice((0, 0, 1, 7, 40)))
            continue
        options = chance.choice([b""] * 6 + [b"\1" * 4, b"\1" * 40, bytes(8), b"\x94\4\0\0", b"\x07\7\4\0\0\0\0\0", b"\x83\7\4" + four("10.2.0.1") + b"\0",
                                            b"\x89\7\4" + four("10.2.0.1") + b"\0", b"\x99\0\0\0", b"\x99\1\0\0", b"\x99\5\0\0", b"\x99\x28" + bytes(38), b"\1\1\1\x83", b"\x44\4\5\0"])
        words = 5 + len(options) // 4
        total = words * 4 + len(body) + chance.choice((0,) * 16 + (1, -1, -len(body), -len(body) - 1, -words * 4 - len(body), 0xFFFF - words * 4 - len(body), 8, -8))
        part = chance.choice([0] * 6 + [0x4000, 0x8000, 0x2000, 0x2001, 0x0001, 0x1FFF, 0x1FFE, 0x3FFF, 0xFFFF])
        source = chance.choice([four("10.1.0.9")] * 12 + [four(it) for it in ("127.0.0.1", "224.0.0.9", "255.255.255.255", "0.0.0.0", "10.1.0.1", "10.2.0.1", "10.1.0.255", "10.2.0.255", "198.51.100.1", "10.7.7.7")])
        first = chance.choice([0x40 | words] * 30 + [0x50 | words, 0x60 | words, 0x44, 0x40, words, 0x40 | min(15, words + 1), 0x4F])
        head = struct.pack(">BBHHHBBH", first, chance.randrange(256), total & 0xFFFF, n, part, chance.choice((64, 64, 64, 255, 2, 1, 0)), chance.choice((17, 17, 17, 6, 1, 2, 47, 253)), 0)
        whole = head + source + four("10.2.0.9") + options
        right = checksum(whole)
        field = chance.choice([right] * 20 + [right ^ 1, right ^ 0x8000, (~right) & 0xFFFF, 0, 0xFFFF, right ^ 0xFFFF if right in (0, 0xFFFF) else right])
        whole = whole[:10] + struct.pack(">H", field) + whole[12:]
        yield IPV4, whole + body + bytes(chance.choice((0, 0, 1, 7, 40)))


def without_padding(kind, frame):
    """The IP packet of a frame, as long as it says."""
    length = struct.unpack_from(">H", frame, 16)[0] if kind == IPV4 else 40 + struct.unpack_from(">H", frame, 18)[0]
    return frame[14:14 + length]


@attack(needs=("root",))
def headers_that_the_kernel_refuses(stage):
    """A guest sends packets with odd headers to its router, and the same ones to a kernel that routes between two interfaces: what that one refuses must not pass, and what passes both is the same."""
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.1.0.1/24,2001:db8:1::1/64", "peer=vhost-user:DIR/peer.sock,router=r,address=10.2.0.1/24,2001:db8:2::1/64"], args=("--router", "r"))
    kernel, chance = Kernel(stage), random.Random(15)
    stations = {name: it for name, it in interfaces(stage).items()}
    host, peer = Host(stage, "evil", EVIL), Host(stage, "peer", HONEST, [four("10.2.0.9")])
    station = stations["evil"][0]
    peer_station, peer_local = stations["peer"]
    peer.send(solicitation(peer.station, six("2001:db8:2::9"), peer_local, peer_station))

    def known():
        host.send(ether(station, host.station, IPV4, packet(four("10.1.0.9"), four("10.2.0.9"), datagram(b"first"))))
        pause(0.02)
        return any(it[42:47] == b"first" for it in peer.come())
    until(known, 10, "the way to the peer")
    sent, ours, theirs = {}, {}, {}

    def note(frames, into):
        for frame in frames:
            kind = struct.unpack_from(">H", frame, 12)[0]
            number = struct.unpack_from(">H", frame, 18 if kind == IPV4 else 16)[0]
            if frame[:6] == mac(HONEST) and kind in (IPV4, IPV6) and number in sent and sent[number][0] == kind:
                into[number] = frame

    def take():
        note(peer.come(), ours)
        note(drained(kernel.out, []), theirs)

    drained(kernel.out, [])
    with stage.during():
        for kind, body in odd_headers(chance, 12_000 if stage.full else 4_000):
            sent[len(sent)] = kind, body
            # The kernel's own padding ends a frame at its packet; ours is sent as it is.
            host.send(ether(station, host.station, kind, body))
            kernel.into.send(ether(kernel.station, host.station, kind, body))
            if len(sent) % 64 == 0:
                pause(0.004)
                host.come()
                take()
        # Behind them comes one that both pass: what has not come before it was refused.
        end = packet(four("10.1.0.9"), four("10.2.0.9"), datagram(b"the end"))
        host.send(ether(station, host.station, IPV4, end))
        kernel.into.send(ether(kernel.station, host.station, IPV4, end))
        ends = {"ours": False, "theirs": False}

        def ended():
            for name, frames, into in (("ours", peer.come(), ours), ("theirs", drained(kernel.out, []), theirs)):
                note([it for it in frames if b"the end" not in it], into)
                ends[name] |= any(b"the end" in it for it in frames)
            return all(ends.values())
        until(ended, 20, "the last packet by both ways")
        counters = stage.daemon.port("evil")["counters"]
    both = ours.keys() & theirs.keys()
    alike = lambda number: without_padding(sent[number][0], ours[number]) == without_padding(sent[number][0], theirs[number])
    # Options that a router writes into (RFC 791: record route, timestamp) are the kernel's business.
    plain = [number for number in both if sent[number][0] == IPV6 or sent[number][1][0] == 0x45]
    different = [sent[number][1][:60].hex() for number in plain if not alike(number)]
    more = [sent[number][1][:60].hex() for number in ours.keys() - theirs.keys()]
    fewer = [sent[number][1][:60].hex() for number in theirs.keys() - ours.keys()]
    stage.notes.update(sent=len(sent), both=len(both), more=len(more), fewer=len(fewer), drops={why: n for why, n in counters["drops"].items() if n})
    stage.check(len(both) > len(sent) / 8, f"{len(both)} of {len(sent)} pass both: nothing was tried")
    stage.check(not different, f"{len(different)} of {len(plain)} that pass both differ, such as {different[:3]}")
    stage.check(not more, f"{len(more)} pass here that the kernel refuses, such as {more[:6]}")
    stage.notes["fewer_such_as"] = fewer[:6]
    for each in (host, peer):
        each.guest.close()


@attack()
def sources_that_lead_elsewhere(stage):
    """A guest at a router's port with rpf=strict forges sources: plainly, in fragments, behind options and other headers, to hosts and to the router itself, while routes and the check change. None passes that does not lead back."""
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.1.0.1/24,2001:db8:1::1/64,rpf=strict",
                       "peer=vhost-user:DIR/peer.sock,router=r,address=10.2.0.1/24,2001:db8:2::1/64,rpf=loose"], args=("--router", "r"))
    post = lambda prefix, via: http(stage.daemon.control, "POST", "/v1/routers/r/routes", {"prefix": prefix, "via": via})
    for prefix, via in (("0.0.0.0/0", "10.2.0.8"), ("::/0", "2001:db8:2::8"), ("10.9.0.0/16", "10.1.0.8"), ("10.9.7.0/24", "10.2.0.8")):
        status, said = post(prefix, via)
        stage.check(status == 200, f"no route: {said}")
    status, said = http(stage.daemon.control, "POST", "/v1/routers/r/routes", {"prefix": "203.0.113.0/24", "blackhole": True})
    stage.notes["blackhole"] = status
    where = interfaces(stage)
    station, local = where["evil"]
    host, peer = Host(stage, "evil", EVIL, [four("10.1.0.9")]), Host(stage, "peer", HONEST, [four("10.2.0.9"), four("10.2.0.8")])
    peer.send(solicitation(peer.station, six("2001:db8:2::9"), where["peer"][1], where["peer"][0]))
    forged = [four(it) for it in ("10.2.0.7", "10.9.7.7", "198.51.100.7", "203.0.113.9", "10.2.0.255", "10.1.0.255", "10.1.0.1", "10.2.0.1", "224.0.0.5", "255.255.255.255", "127.0.0.1", "0.0.0.0", "169.254.1.1", "240.0.0.1")]
    forged6 = [six(it) for it in ("2001:db8:2::7", "2001:db8:7::7", "::", "::1", "ff02::5", "2001:db8:1::1", "2001:db8:2::1", "fe80::66", "::ffff:10.1.0.9", "2001:db8::1")]
    honest = [four("10.1.0.9"), four("10.9.0.9"), four("10.9.8.9")]
    hop = bytes([17, 0, 1, 4]) + bytes(4)
    echo = lambda: struct.pack(">BBHHH", 8, 0, checksum(struct.pack(">BBHHH", 8, 0, 0, 7, 7)), 7, 7)

    def forms(source, to):
        """One packet in every way that a header has."""
        for options in (b"", b"\1" * 4, b"\1" * 36, b"\x83\7\4" + four("10.2.0.9") + b"\0"):
            yield optioned(source, to, datagram(b"forged"), 17, 64, options)
        yield optioned(source, to, echo(), 1, 64, b"")
        for part in (0x2000, 0x2001, 0x0004):
            head = struct.pack(">BBHHHBBH", 0x45, 0, 36, 9, part, 64, 17, 0) + source + to
            yield head[:10] + struct.pack(">H", checksum(head)) + head[12:] + b"forged" + bytes(10)

    def forms6(source, to):
        for following, headers in ((17, b""), (60, hop), (0, hop), (43, bytes([17, 2, 0, 1]) + bytes(4) + to), (44, bytes([17, 0, 0, 0]) + b"frag"), (44, bytes([17, 0, 0, 9]) + b"frag")):
            yield packet6(source, to, headers + datagram(b"forged"), following)

    lies = [ether(station, host.station, IPV4, it) for source in forged for to in ("10.2.0.9", "10.1.0.1", "10.2.0.1", "10.77.0.1") for it in forms(source, four(to))]
    lies += [ether(station, host.station, IPV6, it) for source in forged6 for to in ("2001:db8:2::9", "2001:db8:1::1", "2001:db8:77::1") for it in forms6(source, six(to))]
    mine = [ether(station, host.station, IPV4, packet(source, four("10.2.0.9"), datagram(b"honest"))) for source in honest]
    passed, told, good = [], [], 0

    def look():
        nonlocal good
        for frame in peer.come():
            good += b"honest" in frame
            passed.extend([frame] if b"forged" in frame else [])
        for it in host.come():
            kind, discovery = it[12:14], it[20] == 58 and it[54] in range(133, 138)
            # Its link-local address is its own, and nobody else's behind another port.
            if kind == b"\x08\0" or kind == b"\x86\xdd" and not discovery and it[38:54] != six("fe80::66"):
                told.append(it)

    with stage.during():
        until(lambda: (host.send(mine[0]), pause(0.02), look(), good)[3], 10, "the way to the peer")
        for turn in range(12 if stage.full else 6):
            for each in range(0, len(lies), 32):
                host.send(*lies[each:each + 32])
                pause(0.004)
                look()
            # A route that leads back by the guest's port comes and goes under them, beside the one that does not.
            http(stage.daemon.control, "DELETE", "/v1/routers/r/routes?prefix=10.9.0.0/16")
            post("10.9.0.0/16", "10.1.0.8")
            before = good
            host.send(*mine)
            until(lambda: stage.alive() or look() or good >= before + 2, 10, "honest packets pass")
        pause(0.1)
        look()
        drops = stage.daemon.port("evil")["counters"]["drops"]
    stage.notes.update(sent=len(lies) * (turn + 1), honest=good, drops={why: n for why, n in drops.items() if n})
    stage.check(not passed, f"{len(passed)} with forged sources pass, such as {[it[14:60].hex() for it in passed[:4]]}")
    stage.check(not told, f"{len(told)} are answered, such as {[it[14:60].hex() for it in told[:4]]}")
    stage.check(drops.get("reverse_path", 0) > 100, f"dropped are {drops}: nothing was tried")
    for each in (host, peer):
        each.guest.close()
