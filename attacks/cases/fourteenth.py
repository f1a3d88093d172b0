"""What was tried on 23 November 2026, at night: lies for the kernel of a control plane, senders that share a limit, routes and ports that change under traffic, and cards whose daemon was killed."""

import mmap
import os
import random
import socket
import struct
import subprocess
import time

from outside import vfio, vhost
from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import pause
from outside.fpm import Namespace, group, next_hop, remove_route, route_by
from outside.host import IPV4, IPV6, Host, Pump, arp, checksum, datagram, ether, four, interfaces, packet, packet6
from outside.vhost import mac

from .eleventh import Beside
from .memory import pages_of
from .realtek import BUFFERS, EOR, FS, LS, OWN, Card
from .thirteenth import EVIL, HONEST, advertisement, control, six, to_port

NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT, ROUTER_SOLICITATION = 135, 136, 133
ALL_NODES, ALL_NODES_MAC = six("ff02::1"), mac("33:33:00:00:00:01")


def sealed(source, to, body):
    """A message of ICMPv6 with its checksum."""
    pseudo = source + to + struct.pack(">II", len(body), 58)
    whole = pseudo + body
    return body[:2] + struct.pack(">H", checksum(whole + bytes(len(whole) % 2))) + body[4:]


def says(kind, target, options):
    """The beginning of a message of Neighbor Discovery (RFC 4861 §4), its checksum still to be made."""
    return struct.pack(">BBHI", kind, 0, 0, 0x60000000 if kind == NEIGHBOUR_ADVERTISEMENT else 0) + target + options


def station_of(kind, station):
    return bytes([kind, 1]) + station


def nonce(words):
    """An option without any meaning for whoever does not know it (RFC 3971 §5.3.2)."""
    return bytes([14, words]) + bytes(8 * words - 2)


def drained(heard, into):
    """Adds what there is to hear."""
    try:
        while got := heard.recv(4096):
            into.append(got)
    except BlockingIOError:
        pass
    return into


def inside(space, *command):
    """What a program says in the namespace."""
    return subprocess.run(["ip", "netns", "exec", space.name, *command], check=True, capture_output=True, text=True).stdout


def obeys(space, **settings):
    """Has the kernel there believe as much as one can."""
    for key, value in settings.items():
        subprocess.run(["ip", "netns", "exec", space.name, "sh", "-c", f"for f in /proc/sys/net/ipv?/conf/*/{key}; do [ ! -e $f ] || echo {value} > $f; done"], check=False)


def heard_in_the_end(stage, host, heard, marker):
    """All frames that were heard until `marker`, which is sent now, and again should a limit be in its way."""
    frames = []

    def come():
        stage.alive()
        host.send(marker)
        pause(0.05)
        host.come()
        return marker in drained(heard, frames)
    until(come, 20, "an honest frame behind them")
    return frames


@attack("fourteenth", needs=("root",))
def discovery_for_a_kernel(stage):
    """A guest lies about neighbours to the kernel of its router's control plane, where the router may not look: in long messages, behind other headers, in fragments, and with a target that changes after it was judged."""
    space = Namespace(stage)
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=2001:db8:a::1/64,10.0.0.1/24"], args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil"), 20, "the interface of its control plane")
    shown = lambda *what: inside(space, "ip", "-6", *what)
    until(lambda: "2001:db8:a::1/64" in shown("address") and "tentative" not in shown("address"), 20, "its addresses are its own")
    obeys(space, suppress_frag_ndisc=0, forwarding=0, accept_ra=1, accept_redirects=1)
    host = Host(stage, "evil", EVIL)
    until(lambda: "linkdown" not in shown("route") and "tentative" not in shown("address"), 20, "its link")
    before = shown("route"), shown("-o", "address")
    station, own = interfaces(stage)["evil"]
    heard = space.frames("evil", host.station)
    stage.cleanup(heard.close)
    near, far, mine, other = six("2001:db8:a::66"), six("2001:db8:b::9"), six("2001:db8:a::1"), mac("02:00:00:00:ee:77")
    to_me, to_other = station_of(2, host.station), station_of(2, other)
    from_other = station_of(1, other)
    lies = []
    for to, mac_to in ((ALL_NODES, ALL_NODES_MAC), (mine, station), (own, station)):
        def lie(source, body, following=58, headers=b""):
            lies.append(ether(mac_to, host.station, IPV6, packet6(source, to, headers + sealed(source, to, body), following, 255)))
        for words in (17, 18, 60, 100):
            for target, option in ((mine, to_me), (own, to_me), (near, to_other), (far, to_me)):
                lie(near, says(NEIGHBOUR_ADVERTISEMENT, target, option + nonce(words)))
            lie(near, says(NEIGHBOUR_SOLICITATION, near, from_other + nonce(words)))
            lie(far, says(NEIGHBOUR_SOLICITATION, mine, from_other + nonce(words)))
        for source, option in ((near, from_other), (far, station_of(1, host.station)), (far, from_other)):
            lie(source, struct.pack(">BBHI", ROUTER_SOLICITATION, 0, 0, 0) + option)
        # Hop-by-hop options of one word; a whole packet as a fragment, and one that says that more follow.
        hidden = [(0, bytes([58, 0, 1, 4]) + bytes(4))] + [(44, bytes([58, 0, 0, more]) + b"evil") for more in (0, 1)]
        for following, headers in hidden:
            for target in (mine, own, near):
                lie(near, says(NEIGHBOUR_ADVERTISEMENT, target, to_other + nonce(1)), following, headers)
            prefix = struct.pack(">BBBBIII", 3, 4, 64, 0xC0, 86400, 86400, 0) + six("2001:db8:e::")
            lie(six("fe80::66"), advertisement(134, prefix), following, headers)
        lie(six("fe80::66"), advertisement(134, prefix), 44, bytes([60, 0, 0, 0]) + b"evil" + bytes([58, 0, 1, 4]) + bytes(4))
    marker = ether(mac("33:33:00:00:00:05"), host.station, IPV6, packet6(six("fe80::66"), six("ff02::5"), bytes(30), 89, 1))
    with stage.during():
        for each in range(0, len(lies), 16):
            host.send(*lies[each:each + 16])
            pause(0.05)
        frames = heard_in_the_end(stage, host, heard, marker)
        wrong = [lies.index(frame) for frame in frames if frame in lies]
        stage.check(not wrong, f"{len(wrong)} of {len(lies)} lies come to the kernel: {wrong[:10]}")
        after = shown("route"), shown("-o", "address")
        stage.check(before == after, f"the kernel has {set(after[0].splitlines() + after[1].splitlines()) - set(before[0].splitlines() + before[1].splitlines())}")
        host.guest.close()
        until(lambda: stage.daemon.port("evil")["state"]["peer"] == "waiting", 20, "it has gone")
        seen = flipping(stage, heard, station, own)
    stage.notes.update(lies=len(lies), seen=seen)


def flipping(stage, heard, station, own):
    """Each descriptor leads to one advertisement, whose target changes all the time between a neighbour and the router; its checksum is right with both."""
    pump = Pump(stage, "evil", [b""])
    guest, near = pump.guest, six("fe80::66")
    body = lambda target, word: says(NEIGHBOUR_ADVERTISEMENT, target, station_of(2, mac(EVIL)) + nonce(2)[:-2] + struct.pack(">H", word))
    field = lambda target: struct.unpack(">H", sealed(near, own, body(target, 0))[2:4])[0]
    word = field(own) + (~field(near) & 0xFFFF)
    word = (word & 0xFFFF) + (word >> 16)
    first, second = (sealed(near, own, body(*each)) for each in ((near, 0), (own, word)))
    stage.check(first[:8] == second[:8], "their checksums differ: nothing was tried")
    data = bytes(12) + ether(station, mac(EVIL), IPV6, packet6(near, own, first, 58, 255))
    at = guest.out
    guest.memory[at:at + len(data)] = data
    for slot in range(pump.count):
        guest.tx.put(slot, at, len(data))
    begin = at + 12 + 14 + 40 + 8

    def flip():
        for _ in range(500):
            guest.memory[begin:begin + len(second) - 8] = second[8:]
            guest.memory[begin:begin + len(first) - 8] = first[8:]
        pump.turn()

    pump.turn()
    frames = []
    with Beside(flip, stage.cpus):
        end = time.monotonic() + 5 * stage.seconds
        while time.monotonic() < end:
            stage.alive()
            drained(heard, frames)
            pause(0.02)
    drained(heard, frames)
    targets = [frame[62:78] for frame in frames if frame[54:55] == bytes([NEIGHBOUR_ADVERTISEMENT])]
    wrong = sum(target == own for target in targets)
    stage.check(len(targets) > 100, f"{len(targets)} came to the kernel: nothing was tried")
    stage.check(not wrong, f"{wrong} of {len(targets)} that the kernel hears are about the router's own address")
    stage.check(all(target == near for target in targets), "some were changed after they were judged")
    guest.close()
    return len(targets)


def optioned(source, to, payload, protocol, ttl, options):
    """An IPv4 packet with options: a multiple of four bytes."""
    head = struct.pack(">BBHHHBBH", 0x45 + len(options) // 4, 0, 20 + len(options) + len(payload), 1, 0, ttl, protocol, 0) + source + to + options
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


@attack("fourteenth", needs=("root",))
def sessions_of_others(stage):
    """A guest speaks to its router's routing daemon in the name of a neighbour behind another port, with the hop limit of a neighbour: BFD behind options and in fragments, BGP, and VRRP."""
    space = Namespace(stage)
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.0.0.1/24,2001:db8:a::1/64",
                       "peer=vhost-user:DIR/peer.sock,router=r,address=10.0.1.1/24,2001:db8:b::1/64"], args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil"), 20, "the interface of its control plane")
    host = Host(stage, "evil", EVIL)
    station = interfaces(stage)["evil"][0]
    heard = space.frames("evil", host.station)
    stage.cleanup(heard.close)
    bfd = lambda port=3784: struct.pack(">HHHH", 49_152, port, 32, 0) + bytes([0x20, 0x40, 3, 24]) + bytes(20)

    def frames(source, source6):
        """The same of anybody."""
        for to in (four("10.0.0.1"), four("10.0.1.1")):
            for port in (3784, 3785):
                for words in (0, 1, 2, 6, 7, 8, 10):
                    yield ether(station, host.station, IPV4, optioned(source, to, bfd(port), 17, 255, b"\1" * (4 * words)))
            yield ether(station, host.station, IPV4, packet(source, to, to_port(179), 6, 255))
        yield ether(mac("01:00:5e:00:00:12"), host.station, IPV4, packet(source, four("224.0.0.18"), bytes(24), 112, 255))
        for to in (six("2001:db8:a::1"), six("2001:db8:b::1")):
            yield ether(station, host.station, IPV6, packet6(source6, to, bfd(), 17, 255))
            yield ether(station, host.station, IPV6, packet6(source6, to, bytes([17, 0, 0, 0]) + b"evil" + bfd(), 44, 255))
            yield ether(station, host.station, IPV6, packet6(source6, to, bytes([17, 0, 0, 1]) + b"more" + bfd()[:16], 44, 255))
            yield ether(station, host.station, IPV6, packet6(source6, to, to_port(179), 6, 255))

    lies = list(frames(four("10.0.1.9"), six("2001:db8:b::9")))
    honest = list(frames(four("10.0.0.9"), six("2001:db8:a::9")))
    with stage.during():
        host.send(*lies)
        pause(0.1)
        for each in range(0, len(honest), 8):
            host.send(*honest[each:each + 8])
            pause(0.05)
        come = heard_in_the_end(stage, host, heard, honest[0])
        wrong = [lies.index(frame) for frame in come if frame in lies]
        got = sum(frame in come for frame in honest)
        stage.check(not wrong, f"{len(wrong)} of {len(lies)} frames in another's name come to the routing daemon's kernel: {wrong}")
        stage.check(got == len(honest), f"{got} of {len(honest)} in its own name come")
    stage.notes.update(lies=len(lies), honest=got)
    host.guest.close()


@attack("fourteenth", needs=("root",))
def fragments_without_an_end(stage):
    """A guest sends first fragments of ever new packets to its router, as fast as it can: the kernel of the control plane keeps them all for a while, and must have room for those of a neighbour at another port."""
    space = Namespace(stage)
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.0.0.1/24", "peer=vhost-user:DIR/peer.sock,router=r,address=10.0.1.1/24"],
                args=("--router", f"r,control={space.name}"))
    until(lambda: "10.0.1.1/24" in inside(space, "ip", "address"), 20, "the addresses of its control plane")

    def speaks():
        speaker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        speaker.bind(("10.0.1.1", 520))
        return speaker
    service = space.inside(speaks)
    stage.cleanup(service.close)
    stations = {name: it[0] for name, it in interfaces(stage).items()}
    peer = Host(stage, "peer", HONEST, [four("10.0.1.9")])

    def part(source, to, number, payload, place, more):
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), number, more << 13 | place // 8, 64, 17, 0) + source + to
        return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload

    first = lambda n: ether(stations["evil"], mac(EVIL), IPV4, part(four(f"10.0.0.{2 + n // 60_000}"), four("10.0.0.1"), n % 60_000, bytes(1400), 0, 1))
    pump, count = Pump(stage, "evil", [first(n) for n in range(16384)]), 0
    memory = lambda: int(next(line.split()[-1] for line in inside(space, "cat", "/proc/net/sockstat").splitlines() if line.startswith("FRAG:")))
    refused = lambda: sum(it["refused"] for it in control(stage)["classes"])

    def arrives(number):
        data = struct.pack(">HHHH", 520, 520, 8 + 2000, 0) + bytes(2000)
        for place, more in ((0, 1), (1400, 0)):
            peer.send(ether(stations["peer"], peer.station, IPV4, part(four("10.0.1.9"), four("10.0.1.1"), number, data[place:place + 1400], place, more)))
        pause(0.05)
        peer.come()
        try:
            return len(service.recv(4096)) == 2000
        except BlockingIOError:
            return False

    with stage.during(), Beside(pump.turn, stage.cpus):
        until(lambda: stage.alive() or refused() > 20_000, 30, "the flood")
        end = time.monotonic() + 4 * stage.seconds
        while time.monotonic() < end:
            stage.alive()
            pause(0.1)
        held = memory()
        # A loaded machine may be late with one.
        come = sum(arrives(n) for n in range(8))
    stage.notes.update(held_kib=held >> 10, come=come)
    stage.check(come >= 7, f"{come} of 8 packets in two fragments of a neighbour at another port arrive; the kernel has {held >> 10} KiB of fragments")
    for each in (pump.guest, peer.guest):
        each.close()


@attack("fourteenth", needs=("root",))
def parts_of_a_limit(stage):
    """A guest floods its switch's gateway with frames for the control plane; guests at 70 other ports of that switch have to be heard, whatever the numbers of their ports are."""
    space, count = Namespace(stage), 70
    others = [f"y{n}" for n in range(count)]
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{name}=vhost-user:DIR/{name}.sock,switch=evil" for name in others] + ["gw=switch:evil,router=r,address=10.5.0.1/24"],
                args=("--router", f"r,control={space.name}"), neighbours=False, ready=60)
    until(lambda: space.link("gw"), 20, "the interface of its control plane")
    station = interfaces(stage)["gw"][0]
    speak = lambda source, address: ether(station, source, IPV4, packet(four(address), four("10.5.0.1"), to_port(9)))
    refused = lambda: sum(it["refused"] for it in control(stage)["classes"] if it["class"] == "other")
    pump = Pump(stage, "evil", [speak(mac(EVIL), "10.5.0.2")])
    pump.turn()
    silent = []
    with stage.during(), Beside(pump.turn, stage.cpus):
        until(lambda: stage.alive() or refused() > 20_000, 30, "the flood")
        # Those whose numbers differ by a multiple of 64 from the flood's several times.
        number = lambda name: stage.daemon.port(name)["number"]
        shared = [(n, name) for n, name in enumerate(others) if (number(name) - number("evil")) % 64 == 0]
        for n, name in [*enumerate(others), *shared * 5]:
            until(lambda: stage.daemon.port(name)["state"]["peer"] == "waiting", 10, "its former guest has gone")
            y = Host(stage, name, f"02:00:00:00:dd:{n:02x}")
            heard = space.frames("gw", y.station)
            frames = []
            # All that one guest sends in six turns is less than its part of a burst.
            y.send(*[speak(y.station, f"10.5.0.{10 + n}")] * 4)
            try:
                until(lambda: len(drained(heard, frames)) >= 3, 20, "most of them")
            except Failure:
                silent.append((name, len(frames)))
            heard.close()
            y.guest.close()
            stage.alive()
    stage.notes.update(silent=len(silent), refused=refused())
    stage.check(shared, "no two ports have such numbers: nothing was tried")
    stage.check(not silent, f"of {count} guests, these are not heard (4 frames each): {silent}")
    pump.guest.close()


@attack("fourteenth", needs=("root",))
def lies_for_a_control_plane(stage):
    """A guest calls what only the control plane itself may call, answers for addresses of other networks, redirects, lies about a path's MTU, and routes its packets by itself: the kernel must not obey, and nobody may be reached."""
    space = Namespace(stage)
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.0.0.1/24,2001:db8:a::1/64", "peer=vhost-user:DIR/peer.sock,router=r,address=10.0.1.1/24"],
                args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil") and space.link("peer"), 20, "the interfaces of its control plane")
    obeys(space, accept_redirects=1, secure_redirects=0, forwarding=0, accept_source_route=1, rp_filter=0)
    host = Host(stage, "evil", EVIL, [four("10.0.0.9")])
    peer = Host(stage, "peer", HONEST, [four("10.0.1.9")])
    station = interfaces(stage)["evil"][0]
    heard = space.frames("evil", host.station)
    stage.cleanup(heard.close)
    until(lambda: "10.0.0.1/24" in inside(space, "ip", "address"), 20, "its addresses")
    inside(space, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    inside(space, "ip", "route", "add", "198.51.100.0/24", "via", "10.0.0.9", "dev", "evil")
    until(lambda: "2001:db8:a::1/64" in inside(space, "ip", "address"), 20, "its addresses")
    inside(space, "ip", "-6", "route", "add", "2001:db8:99::/64", "via", "2001:db8:a::9", "dev", "evil")

    def listens():
        listener = socket.socket()
        listener.bind(("0.0.0.0", 8080))
        listener.listen()
        return listener
    def speaks():
        speaker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        speaker.bind(("0.0.0.0", 3784))
        return speaker
    for service in (space.inside(listens), space.inside(speaks)):
        stage.cleanup(service.close)
    mine, own = four("10.0.0.9"), four("10.0.0.1")

    def segment(to, port, options=b"", source=50_000):
        body = struct.pack(">HHIIBBHHH", source, port, 7, 0, 0x50, 2, 1024, 0, 0)
        pseudo = mine + to + struct.pack(">BBH", 0, 6, len(body))
        body = body[:16] + struct.pack(">H", checksum(pseudo + body)) + body[18:]
        return ether(station, host.station, IPV4, optioned(mine, to, body, 6, 64, options))

    sources = iter(range(50_001, 60_000))

    def answers(to, port, options=b"", tries=5):
        """Whether a connection is accepted. An answer to an earlier one, which the kernel repeats, is none."""
        source = next(sources)
        host.send(segment(to, port, options, source))
        for _ in range(tries):
            pause(0.02)
            if any(it[12:14] == b"\x08\0" and it[23] == 6 and it[36:38] == struct.pack(">H", source) and it[47] & 0x12 == 0x12 for it in host.come()):
                return True
        return False

    known = lambda: inside(space, "ip", "-4", "neighbour")
    path = lambda: inside(space, "ip", "route", "get", "198.51.100.7") + inside(space, "ip", "-6", "route", "get", "2001:db8:99::7")
    before = path()

    def message(kind, code, word, quoted):
        body = struct.pack(">BBH", kind, code, 0) + word + quoted
        return body[:2] + struct.pack(">H", checksum(body + bytes(len(body) % 2))) + body[4:]
    quoted = lambda protocol, rest=bytes(8): packet(own, four("198.51.100.7"), rest, protocol)
    with stage.during():
        until(lambda: answers(own, 8080), 20, "an honest connection")
        # A loose source route (RFC 791 §3.1) has a length, a pointer, and addresses.
        by = lambda kind, address: bytes([1, kind, 7, 4]) + four(address)
        for to in ("127.0.0.1", "10.0.0.1", "10.0.1.1", "192.0.2.1", "10.0.0.255", "224.0.0.1"):
            stage.check(not answers(four(to), 2620), f"the control plane's listener answers at {to}")
        for kind in (131, 137):
            stage.check(not answers(own, 8080, by(kind, "127.0.0.1")), "a packet with a route of its own is answered")
        connections = control(stage)["connections"]
        stage.check(connections == 0, f"{connections} connections to the control plane")
        # Answers, and announcements, for addresses of another network and for the router's own.
        lies = [arp(operation, host.station, four(address), four(asked)) for operation in (1, 2)
                for address in ("10.0.1.9", "10.0.1.1", "10.0.0.1", "198.51.100.7", "127.0.0.1") for asked in (address, "10.0.0.1", "10.0.0.77")]
        host.send(*lies)
        # Redirects and a path's MTU: plainly, behind options, and in a fragment.
        told = [message(5, code, four("10.0.0.66"), quoted(protocol)) for code in (0, 1) for protocol in (6, 17, 1)]
        told += [message(3, 4, struct.pack(">HH", 0, 68), quoted(protocol, rest)) for protocol, rest in ((1, bytes(8)), (1, b"\x08" + bytes(7)), (17, struct.pack(">HHHH", 3784, 53, 28, 0)), (47, bytes(8)), (89, bytes(8)))]
        for body in told:
            for options in (b"", b"\1" * 4, b"\1" * 24, b"\1" * 40):
                host.send(ether(station, host.station, IPV4, optioned(mine, own, body, 1, 64, options)))
            whole = packet(mine, own, body, 1)
            first = whole[:6] + b"\x20\0" + whole[8:10] + b"\0\0" + whole[12:20] + body[:len(body) // 8 * 8]
            first = first[:2] + struct.pack(">H", len(first)) + first[4:]
            host.send(ether(station, host.station, IPV4, first[:10] + struct.pack(">H", checksum(first[:20])) + first[12:]))
            pause(0.02)
        near6, own6, options6 = six("2001:db8:a::9"), six("2001:db8:a::1"), bytes([58, 0, 1, 4]) + bytes(4)
        for protocol in (58, 17, 47):
            body = struct.pack(">BBHI", 2, 0, 0, 1280) + packet6(own6, six("2001:db8:99::7"), b"\x80" + bytes(15), protocol)
            for to, mac_to in ((own6, station), (ALL_NODES, ALL_NODES_MAC)):
                for following, headers in ((58, b""), (0, options6), (44, bytes([58, 0, 0, 0]) + b"evil")):
                    host.send(ether(mac_to, host.station, IPV6, packet6(near6, to, headers + sealed(near6, to, body), following)))
            told.append(body)
        frames = heard_in_the_end(stage, host, heard, segment(own, 8080))
        wrong = [frame for frame in frames if frame in lies]
        stage.check(not wrong, f"{len(wrong)} of {len(lies)} lies of ARP come to the kernel: {[frame[28:32] for frame in wrong]}")
        foreign = [line for line in known().splitlines() if "dev evil" in line and "10.0.0." not in line]
        stage.check(not foreign, f"the kernel has neighbours {foreign}")
        after = path()
        stage.check("mtu" not in after and "10.0.0.66" not in after, f"the ways to 198.51.100.7 and 2001:db8:99::7 were {before!r}, and are {after!r}")
    stage.notes.update(lies=len(lies) + len(told))
    for guest in (host.guest, peer.guest):
        guest.close()


@attack("fourteenth", needs=("root",))
def plans_under_traffic(stage):
    """A router's peer flaps thousands of routes and the next hops under them, thousands of times a second, while a guest sends to them and a port on which some lead goes and comes: memory stays, and the routes are right in the end."""
    space = Namespace(stage)
    net = {"up": "10.7.0.1/16", "web": "10.8.0.1/16", "third": "10.9.0.1/16"}
    port = lambda name: f"{name}=vhost-user:DIR/{name}.sock,router=r,address={net[name]}"
    stage.start(ports=[port(name) for name in net], args=("--router", f"r,control={space.name},grace=1"))
    until(lambda: all(space.link(name) for name in net), 20, "the interfaces of its control plane")
    # Tables keep the memory that they have grown to, and the allocator what was freed.
    stage.leaves_kib = 128 << 10
    link, daemon = {name: space.link(name) for name in net}, until(space.connect, 20, "its control plane listens")
    count = 100_000 if stage.full else 10_000
    prefix = lambda n: struct.pack(">I", 0x14000000 + (n << 8))
    routes = lambda: control(stage)["routes"]
    station = interfaces(stage)["up"][0]
    pump = Pump(stage, "up", [ether(station, mac(EVIL), IPV4, packet(four("10.7.0.5"), struct.pack(">I", 0x14000007 + (n * 37 % count << 8)), datagram(bytes(40)))) for n in range(1024)])
    hops = [("up", 0x0A070000), ("web", 0x0A080000), ("third", 0x0A090000)]
    chance = random.Random(14)

    def hop(number, which, gateway):
        name, base = hops[which]
        return next_hop(number, link[name], struct.pack(">I", base + 9 + gateway))

    came = b"".join(route_by(prefix(n), 24, 1000 + n % 50) for n in range(count))
    gone = b"".join(remove_route(prefix(n), 24) for n in range(count))
    daemon.sendall(b"".join(hop(1 + n, n % 3, n) for n in range(60)) + b"".join(group(1000 + n, range(1 + n, 9 + n)) for n in range(50)))
    changes, sizes = 0, []
    with stage.during(), Beside(pump.turn, stage.cpus):
        end = time.monotonic() + 8 * stage.seconds
        while time.monotonic() < end or len(sizes) < 3:
            daemon.sendall(came)
            for _ in range(20):
                # Each is a change under all routes; the daemon takes some of them together.
                for _ in range(100):
                    number = chance.randrange(60)
                    daemon.sendall(hop(1 + number, chance.randrange(3), chance.randrange(200)))
                    changes += 1
                daemon.sendall(group(1000 + chance.randrange(50), chance.sample(range(1, 61), 8)))
                pause(0.005)
            http(stage.daemon.control, "DELETE", "/v1/ports/third", timeout=60)
            daemon.sendall(gone[:len(gone) // 2])
            status, said = http(stage.daemon.control, "POST", "/v1/ports", {"name": "third", "kind": "vhost-user", "where": stage.at("third.sock"), "router": "r", "address": net["third"]}, timeout=60)
            stage.check(status == 200, f"the port does not come back: {said}")
            daemon.sendall(gone)
            stage.alive()
            link["third"] = until(lambda: space.link("third"), 20, "its interface")
            sizes.append(stage.daemon.usage()["rss_kib"] >> 10)
        # In the end all lead to one neighbour.
        daemon.sendall(came + b"".join(hop(1 + n, 1, 0) for n in range(60)))
        until(lambda: stage.alive() or routes() == count, 60, "all routes are in force")
    stage.notes.update(changes=changes, sizes=sizes)
    stage.check(sizes[-1] < sizes[0] + 64, f"it grows from round to round: {sizes} MiB")
    pump.guest.close()
    until(lambda: stage.daemon.port("up")["state"]["peer"] == "waiting", 20, "the sender has gone")
    host, web = Host(stage, "up", EVIL), Host(stage, "web", HONEST, [four("10.8.0.9")])
    wanted = {struct.pack(">I", 0x14000007 + (n * (count // 20) << 8)) for n in range(20)}
    found = set()

    def all_of_them():
        for to in wanted - found:
            host.send(ether(station, host.station, IPV4, packet(four("10.7.0.5"), to, datagram(b"for you"))))
        pause(0.02)
        host.come()
        found.update(frame[30:34] for frame in web.come() if frame[42:49] == b"for you")
        return found >= wanted
    try:
        until(all_of_them, 30, "reached")
    except Failure:
        stage.check(False, f"{len(found)} of {len(wanted)} routes lead where they should")
    daemon.close()
    until(lambda: routes() == 0, 60, "they are gone with their daemon")
    for each in (host, web):
        each.guest.close()


@attack("fourteenth")
def cards_whose_daemon_was_killed(stage):
    """The daemon of an e1000 and an rtl8169 is killed in the middle of their traffic; before the next one comes, their VMMs write anything into rings and registers, give pages back, or cut their memory short."""
    stage.start("e1000:DIR/evil.sock", ports=["real=rtl8169:DIR/real.sock,switch=evil", "other=vhost-user:DIR/other.sock,switch=evil"], reconnect=True)
    chance, taken_over, faults = random.Random(14), 0, []
    peer = lambda name: stage.daemon.port(name)["state"]["peer"]
    frame = vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:03", 200)

    def scribble(nic, card, pages):
        for _ in range(2000):
            at = chance.randrange(0, 0x8000, 8)
            nic.memory[at:at + 8] = card.memory[at:at + 8] = chance.randbytes(8)
        for page in pages:
            for _ in range(200):
                at = chance.randrange(0, len(page), 4)
                page[at:at + 4] = chance.randbytes(4)

    def heads(nic, card, pages):
        """Only what a ring's place is told by."""
        for page in pages:
            for register in (vfio.TDH, vfio.TDT, vfio.RDH, vfio.RDT, vfio.TDLEN, vfio.RDLEN, vfio.TDBAL, vfio.RDBAL):
                if register % len(page) + 4 <= len(page):
                    struct.pack_into("<I", page, register % len(page), chance.getrandbits(chance.choice((1, 8, 16, 32))))
        for place in range(1024):
            card.describe(place, chance.getrandbits(64), chance.getrandbits(40))

    def punch(nic, card, pages):
        for fd in (nic.fd, card.fd):
            vhost.punch(fd, 0, 1 << 20, True)

    def cut(nic, card, pages):
        for fd in (nic.fd, card.fd):
            os.ftruncate(fd, chance.choice((0, 4096, 0x4000)))

    for turn in range(12 if stage.full else 6):
        nic, card = vfio.Nic(stage.at("evil.sock"), receive=200), Card(stage.at("real.sock"))
        files = pages_of(nic.client)
        pages = [mmap.mmap(fd, os.fstat(fd).st_size) for fd in files]
        flood = stage.helper("flood", stage.at("other.sock"), 20)
        for place in range(512):
            card.memory[BUFFERS:BUFFERS + len(frame)] = frame
            card.describe(place, OWN | FS | LS | len(frame) | (EOR if place == 511 else 0), BUFFERS)
        card.doorbell()
        for _ in range(chance.randrange(50, 400)):
            nic.send(frame)
        stage.daemon.process.kill()
        stage.daemon.process.wait()
        flood.process.kill()
        flood.process.communicate()
        (scribble, heads, punch, cut)[turn % 4](nic, card, pages)
        if not stage.daemon.start():
            raise Failure(f"it does not start again: {stage.daemon.ending()}")
        got = stage.neighbours.got()
        until(lambda: stage.alive() or stage.neighbours.got() > got, 20, "neighbours' traffic after a restart")
        for name in ("evil", "real"):
            state = stage.daemon.port(name)["state"]
            taken_over += state["peer"] != "waiting"
            if state.get("fault"):
                faults.append(str(state["fault"])[:30])
        for each in pages:
            each.close()
        for fd in files:
            os.close(fd)
        for each in (nic, card):
            each.client.close()
            try:
                each.memory.close()
            except BufferError:
                pass
            os.close(each.fd)
        for name in ("evil", "real"):
            until(lambda: stage.alive() or peer(name) == "waiting", 20, f"the end of the former VMM of {name}")
    stage.notes.update(taken_over=taken_over, faults=faults)
    stage.check(taken_over > 0, "no card was taken over: nothing was tried")
    counts = lambda name: stage.daemon.port(name)["counters"]["in_frames"]
    before = counts("evil"), counts("real")
    nic, card = vfio.Nic(stage.at("evil.sock")), Card(stage.at("real.sock"))
    nic.send(frame)
    card.memory[BUFFERS:BUFFERS + len(frame)] = frame
    card.describe(0, OWN | EOR | FS | LS | len(frame), BUFFERS)
    card.doorbell()
    until(lambda: counts("evil") > before[0] and counts("real") > before[1], 10, "a frame of each card's next VMM")
    for each in (nic, card):
        each.close()
    stage.first_pid = stage.daemon.pid
    last = stage.neighbours.end()
    flow = last["flows"][0]
    stage.check(not flow["altered"], f"{flow['altered']} frames are altered")
    stage.conserved()
    stage.daemon.stop()
    stage.spared.add("end")
