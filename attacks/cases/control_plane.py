"""Lies for the kernel and the routing daemon of a router's control plane."""

import socket
import struct
import time

from outside.case import attack
from outside.daemon import until
from outside.flow import Beside, pause
from outside.fpm import control
from outside.host import EVIL, HONEST, IPV4, IPV6, Host, Pump, arp, checksum, ether, four, interfaces, optioned, packet, packet6, six, to_port
from outside.namespaces import Namespace, drained, inside, obeys
from outside.vhost import mac

ALL_NODES, ALL_NODES_MAC = six("ff02::1"), mac("33:33:00:00:00:01")
NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT, ROUTER_SOLICITATION = 135, 136, 133


def station_of(kind, station):
    return bytes([kind, 1]) + station


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


def says(kind, target, options):
    """The beginning of a message of Neighbor Discovery (RFC 4861 §4), its checksum still to be made."""
    return struct.pack(">BBHI", kind, 0, 0, 0x60000000 if kind == NEIGHBOUR_ADVERTISEMENT else 0) + target + options


def sealed(source, to, body):
    """A message of ICMPv6 with its checksum."""
    pseudo = source + to + struct.pack(">II", len(body), 58)
    whole = pseudo + body
    return body[:2] + struct.pack(">H", checksum(whole + bytes(len(whole) % 2))) + body[4:]


def nonce(words):
    """An option without any meaning for whoever does not know it (RFC 3971 §5.3.2)."""
    return bytes([14, words]) + bytes(8 * words - 2)


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


def advertisement(kind, options):
    """A router's advertisement (RFC 4861 §4.2) for half an hour, or the beginning of a redirect (§4.5)."""
    middle = struct.pack(">BBHII", 64, 0, 1800, 0, 0) if kind == 134 else bytes(4) + six("fe80::66") + six("2001:db8:b::9")
    return struct.pack(">BBH", kind, 0, 0) + middle + options


@attack(needs=("root",), most=True)
def discovery_for_a_kernel(stage):
    """A guest lies about neighbours, and calls itself a router, to the kernel of its router's control plane, where the router may not look: in long messages, behind other headers, in fragments, and with a target that changes after it was judged."""
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
    heard = space.frames("evil", 8, host.station[2:])
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
        # A router's advertisement and a redirect, plainly and behind options and a route.
        link, target = b"\1\1" + host.station, b"\2\1" + host.station
        further = struct.pack(">BBBBI", 24, 3, 128, 0x08, 86400) + six("2001:db8:b::8")
        for following, headers in ((58, b""), *hidden, (60, bytes([58, 6, 1, 52]) + bytes(52)), (43, bytes([58, 0, 0, 0]) + bytes(4))):
            lie(six("fe80::66"), advertisement(134, prefix + further + link), following, headers)
            lie(six("fe80::66"), advertisement(137, target), following, headers)
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


@attack(needs=("root",), most=True)
def sessions_of_others(stage):
    """A guest speaks to its router's routing daemon in the name of a neighbour behind another port, with the hop limit of a neighbour: BFD behind options and in fragments, BGP, and VRRP."""
    space = Namespace(stage)
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.0.0.1/24,2001:db8:a::1/64",
                       "peer=vhost-user:DIR/peer.sock,router=r,address=10.0.1.1/24,2001:db8:b::1/64"], args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil"), 20, "the interface of its control plane")
    host = Host(stage, "evil", EVIL)
    station = interfaces(stage)["evil"][0]
    heard = space.frames("evil", 8, host.station[2:])
    stage.cleanup(heard.close)
    bfd = lambda port=3784: struct.pack(">HHHH", 49_152, port, 32, 0) + bytes([0x20, 0x40, 3, 24]) + bytes(20)

    def frames(source, source6):
        """Messages of each kind in the name of a neighbour with these addresses."""
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


@attack(needs=("root",), most=True)
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
    heard = space.frames("evil", 8, host.station[2:])
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
