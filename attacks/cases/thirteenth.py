"""What was tried on 23 November 2026, in the evening: gateways on switches, floods for a control plane, a Realtek's rings once more, and half messages of a routing daemon."""

import random
import socket
import struct
import subprocess
import time

from outside import vhost, words
from outside.case import attack
from outside.daemon import http, until
from outside.flow import pause
from outside.fpm import BGP, DST, GATEWAY, MAIN, NEWNEXTHOP, NEWROUTE, OIF, UNICAST, Namespace, attribute, frame, route
from outside.host import ARP, IPV4, IPV6, Host, Pump, arp, checksum, datagram, ether, four, interfaces, packet, packet6
from outside.vhost import mac

from .eleventh import Beside
from .realtek import EOR, FS, LS, LSO, OWN, BUFFERS, Card, next_one

EVIL, HONEST = "02:00:00:00:ee:01", "02:00:00:00:ee:02"
MULTIPATH, NHA_GROUP = 9, 2


def control(stage, name="r"):
    """What the control plane of a router says of itself."""
    return next(r for r in stage.daemon.ask("GET", "/v1/routers")["routers"] if r["name"] == name)["control"]


@attack("thirteenth")
def searched_neighbours(stage):
    """A guest sends to 4,096 stations of another network that are not there, as fast as it can: those that are there must be found for a third."""
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.0.0.1/30", "y=vhost-user:DIR/y.sock,router=r,address=10.0.1.1/24",
                       "z=vhost-user:DIR/z.sock,router=r,address=10.2.0.1/16"], args=("--router", "r"), neighbours=False)
    routers, count = interfaces(stage), 20
    wanted = {four(f"10.2.200.{1 + n}") for n in range(count)}
    y, z = Host(stage, "y", HONEST, [four("10.0.1.2")]), Host(stage, "z", "02:00:00:00:ee:03", wanted)
    to = [four(f"10.2.{n // 250}.{1 + n % 250}") for n in range(4096)]
    pump = Pump(stage, "evil", [ether(routers["evil"][0], mac(EVIL), IPV4, packet(four("10.0.0.2"), each, datagram(b"nobody"))) for each in to])
    pump.turn()
    dropped = lambda: stage.daemon.port("evil")["counters"]["drops"].get("no_neighbour", 0)
    found = set()
    with stage.during(), Beside(pump.turn, stage.cpus):
        until(lambda: stage.alive() or dropped() > 20_000, 20, "it looks for them")
        for each in sorted(wanted):
            # The first packet has the router ask, and the second one is delivered.
            for _ in range(2):
                y.send(ether(routers["y"][0], y.station, IPV4, packet(four("10.0.1.2"), each, datagram(b"for you"))))
                for _ in range(10):
                    pause(0.005)
                    y.come()
                    found.update(it[30:34] for it in z.come() if it[42:49] == b"for you")
    stage.notes.update(found=len(found), looked_for=dropped())
    # A loaded machine may be late with an answer.
    stage.check(len(found) >= count - 3, f"{len(found)} of {count} stations are found by two packets each")
    for guest in (pump.guest, y.guest, z.guest):
        guest.close()


def ip(source, to, protocol, payload, ttl=64):
    return packet(source, to, payload, protocol, ttl)


def to_port(port):
    """A datagram, or as much of a segment of TCP, to it."""
    return struct.pack(">HHHH", 50_000, port, 20, 0) + bytes(12)


@attack("thirteenth", needs=("root",))
def floods_at_a_gateway(stage):
    """A guest floods its switch's gateway with frames of each class for the control plane, and with packets that end there; another guest of that switch has to be heard, and to be told of its errors."""
    space = Namespace(stage)
    stage.start("vhost-user:DIR/evil.sock", ports=["y=vhost-user:DIR/y.sock,switch=evil", "gw=switch:evil,router=r,address=10.5.0.1/24"],
                args=("--router", f"r,control={space.name}"), neighbours=False)
    until(lambda: space.link("gw"), 20, "the interface of its control plane")
    station, own = interfaces(stage)["gw"][0], four("10.5.0.1")
    y = Host(stage, "y", HONEST, [four("10.5.0.3")])
    heard = space.frames("gw", y.station)
    stage.cleanup(heard.close)
    classes = {
        "bgp": lambda source: ip(source, own, 6, to_port(179)),
        "bfd": lambda source: ip(source, own, 17, to_port(3784), 255),
        "bfd-multihop": lambda source: ip(source, own, 17, to_port(4784), 255),
        "ospf": lambda source: ip(source, own, 89, bytes(24), 1),
        "other": lambda source: ip(source, own, 17, to_port(9)),
    }
    evil = lambda make: ether(station, mac(EVIL), IPV4, make(four("10.5.0.2")))
    mine = lambda make: ether(station, y.station, IPV4, make(four("10.5.0.3")))
    refused = lambda kind: sum(it["refused"] for it in control(stage)["classes"] if it["class"] == kind)
    pump = Pump(stage, "evil", [evil(classes["bgp"])])
    pump.turn()
    sent, least = 14, 11
    got = {}

    def count(name, send, take):
        """How many of `sent` come, which are some milliseconds apart: what one guest may take does not follow from how fast it is."""
        got[name] = 0
        for _ in range(sent):
            y.send(send)
            for _ in range(5):
                pause(0.01)
                got[name] += take()
        stage.check(got[name] >= least, f"of {sent} honest frames of kind {name}, {got[name]} are answered or heard")

    def seen():
        frames = 0
        while True:
            try:
                frames += len(heard.recv(2048)) > 0
            except BlockingIOError:
                return frames

    with stage.during(), Beside(pump.turn, stage.cpus):
        for kind, make in classes.items():
            pump.fill([evil(make)])
            was = refused(kind)
            until(lambda: stage.alive() or refused(kind) > was + 20_000, 30, f"the flood of {kind}")
            seen()
            count(kind, mine(make), seen)
        # Unsolicited answers of stations that are not there, are the kernel's.
        pump.fill([ether(station, mac(EVIL), ARP, arp(2, mac(EVIL), four("10.5.0.2"), own, station)[14:])])
        was = refused("neighbours")
        until(lambda: stage.alive() or refused("neighbours") > was + 20_000, 30, "the flood of ARP")
        seen()
        count("neighbours", ether(station, y.station, ARP, arp(2, y.station, four("10.5.0.3"), own, station)[14:]), seen)
        dead = lambda source: ip(source, four("10.5.0.77"), 17, to_port(9), 1)
        drops = lambda: stage.daemon.port("gw")["counters"]["drops"].get("time_exceeded", 0)
        was = drops()
        pump.fill([evil(dead)])
        until(lambda: stage.alive() or drops() > was + 20_000, 30, "the flood of packets that end")
        y.come()
        count("time exceeded", mine(dead), lambda: sum(it[12:14] == b"\x08\0" and it[23] == 1 and it[34] == 11 for it in y.come()))
    stage.notes.update(got)
    for guest in (pump.guest, y.guest):
        guest.close()


def advertisement(kind, options):
    """A router's advertisement (RFC 4861 §4.2) for half an hour, or the beginning of a redirect (§4.5)."""
    middle = struct.pack(">BBHII", 64, 0, 1800, 0, 0) if kind == 134 else bytes(4) + six("fe80::66") + six("2001:db8:b::9")
    return struct.pack(">BBH", kind, 0, 0) + middle + options


def six(text):
    return socket.inet_pton(socket.AF_INET6, text)


@attack("thirteenth", needs=("root",))
def advertisements_for_a_kernel(stage):
    """A guest advertises itself as a router of all networks, plainly and behind other headers, and redirects packets: the kernel of its router's control plane must not obey."""
    space = Namespace(stage)
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=2001:db8:a::1/64,10.0.0.1/24",
                       "peer=vhost-user:DIR/peer.sock,router=r,address=2001:db8:b::1/64"], args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil"), 20, "the interface of its control plane")
    ip = lambda *what: subprocess.run(["ip", "-n", space.name, *what], check=True, capture_output=True, text=True).stdout
    until(lambda: "2001:db8:b::1/64" in ip("-6", "address") and "2001:db8:a::1/64" in ip("-6", "address"), 20, "its addresses")
    # A kernel that obeys, as a new namespace's does.
    for key, value in (("forwarding", 0), ("accept_ra", 1), ("accept_redirects", 1), ("accept_ra_rt_info_max_plen", 128)):
        subprocess.run(["ip", "netns", "exec", space.name, "sh", "-c", f"echo {value} > /proc/sys/net/ipv6/conf/evil/{key}"], check=False)
    host = Host(stage, "evil", EVIL)
    station, own = interfaces(stage)["evil"]
    heard = space.frames("evil", host.station)
    stage.cleanup(heard.close)
    # Detection of duplicate addresses ends first, so that the kernel changes nothing by itself.
    until(lambda: "tentative" not in ip("-6", "address"), 20, "its addresses are its own")
    facts = lambda: (ip("-6", "route"), ip("-6", "-o", "address"), [it for it in ip("-6", "neighbour").splitlines() if " router " in it])
    before, source = facts(), six("fe80::66")
    prefix = struct.pack(">BBBBIII", 3, 4, 128, 0x80, 86400, 86400, 0) + six("2001:db8:b::9")
    network = struct.pack(">BBBBIII", 3, 4, 64, 0xC0, 86400, 86400, 0) + six("2001:db8:e::")
    further = struct.pack(">BBBBI", 24, 3, 128, 0x08, 86400) + six("2001:db8:b::8")
    options = prefix + network + further + b"\1\1" + host.station
    wild, sent = random.Random(134), 0

    def message(to, kind):
        body = advertisement(kind, options if kind == 134 else b"\2\1" + host.station)
        pseudo = source + to + struct.pack(">II", len(body), 58)
        return body[:2] + struct.pack(">H", checksum(pseudo + body)) + body[4:]

    with stage.during():
        for to, mac_to in ((six("ff02::1"), mac("33:33:00:00:00:01")), (own, station), (six("2001:db8:a::1"), station)):
            for kind in (134, 137):
                body = message(to, kind)
                behind = [(58, b"")] + [(header, bytes([58, words]) + b"\1" + bytes([4 + 8 * words]) + bytes(4 + 8 * words)) for header in (0, 60) for words in (0, 1, 6)]
                behind += [(43, bytes([58, 0, 0, 0]) + bytes(4)), (0, bytes([60, 0, 1, 4]) + bytes(4) + bytes([58, 0, 1, 4]) + bytes(4)),
                           (44, bytes([58, 0, 0, 0]) + wild.randbytes(4))]
                for following, headers in behind:
                    packet = packet6(source, to, headers + body, following, 255)
                    host.send(ether(mac_to, host.station, IPV6, packet))
                    sent += 1
        # What comes behind them is heard when they have been dealt with.
        until(lambda: stage.alive() or said(host, heard, ether(mac("33:33:00:00:00:05"), host.station, IPV6, packet6(source, six("ff02::5"), bytes(30), 89, 1))),
              20, "an honest frame behind them")
        pause(0.2)
        after = facts()
    stage.notes.update(sent=sent)
    for was, now in zip(before, after):
        lines = now if isinstance(now, list) else now.splitlines()
        stage.check(was == now, f"the kernel has {[line for line in lines if line not in was]}")
    host.guest.close()


def said(host, heard, frame):
    """Whether `frame`, which is sent, comes to the kernel."""
    host.send(frame)
    pause(0.02)
    host.come()
    try:
        while got := heard.recv(2048):
            if got[:14] == frame[:14]:
                return True
    except BlockingIOError:
        return False


@attack("thirteenth")
def gateways_in_a_circle(stage):
    """Two routers stand on two switches, in a circle; guests send them anything, whose heads lie in pieces and change, while gateways, routers and routes come and go."""
    gateways = {
        "ra": ("evil", "r", "10.5.0.1/24"), "rb": ("far", "r", "10.6.0.1/24"),
        "sa": ("evil", "s", "10.5.0.2/24"), "sb": ("far", "s", "10.6.0.2/24"),
    }
    stage.start("vhost-user:DIR/evil.sock,mtu=9000", switches=("far",), args=("--router", "r", "--router", "s"),
                ports=["z=vhost-user:DIR/z.sock,switch=far"] + [f"{name}=switch:{on},router={of},address={net}" for name, (on, of, net) in gateways.items()])
    add = lambda name: http(stage.daemon.control, "POST", "/v1/ports", dict(zip(("name", "kind", "where", "router", "address"),
                            (name, "switch", *gateways[name]))), timeout=30)
    lead = lambda of, gateway: http(stage.daemon.control, "POST", f"/v1/routers/{of}/routes", {"prefix": "10.9.0.0/16", "via": gateway})
    for of, gateway in (("r", "10.6.0.2"), ("s", "10.5.0.1")):
        status, said = lead(of, gateway)
        stage.check(status == 200, f"no route: {said}")
    stations = {name: it[0] for name, it in interfaces(stage).items()}
    chance = random.Random(13)
    addresses = [four(it) for it in ("10.5.0.1", "10.5.0.2", "10.6.0.1", "10.6.0.2", "10.5.0.7", "10.6.0.7", "10.5.0.255", "10.9.0.9", "10.77.0.1", "224.0.0.5")]
    # Whoever claims a next hop gets its packets: then nothing circles.
    claimed = [it for it in addresses if it not in (four("10.5.0.1"), four("10.6.0.2"))]

    def anything(on, source):
        """Frames from the guest of switch `on`, most of them for its routers."""
        near = [stations[name] for name, gateway in gateways.items() if gateway[0] == on]
        for n in range(512):
            to = chance.choice(near + near + list(stations.values()) + [b"\xff" * 6, mac("01:00:5e:00:00:05"), source])
            by = chance.choice([source, source, source, bytes([2, 0xAA, 0, 0, n >> 8, n & 255]), chance.choice(near), bytes(6)])
            address, whom = chance.choice(addresses), chance.choice(addresses)
            yield chance.choice((
                lambda: ether(to, by, IPV4, packet(address, whom, datagram(bytes(chance.randrange(1400))), chance.choice((1, 6, 17, 89)), chance.choice((0, 1, 2, 64)))),
                lambda: ether(to, by, ARP, arp(chance.choice((1, 2)), by, chance.choice(claimed), whom)[14:]),
                lambda: ether(to, by, chance.choice((IPV4, 0x86DD, 0x8100)), chance.randbytes(chance.randrange(1200))),
            ))()

    pumps = [Pump(stage, "evil", list(anything("evil", mac(EVIL))), pieces=4), Pump(stage, "z", list(anything("far", mac(HONEST))))]

    def work():
        for pump in pumps:
            pump.turn()
        pumps[0].scribble(chance)

    came, changes = {name: 0 for name in gateways}, 0

    def look():
        """What passed, also by those that are gone by now."""
        for name, port in stage.daemon.ports().items():
            if name in came:
                came[name] += port["counters"]["in_frames"] > 0

    with stage.during(), Beside(work, stage.cpus):
        until(lambda: stage.alive() or look() or all(came.values()), 20, "frames enter by each gateway")
        reentered = lambda: sum(port["counters"]["drops"].get("reentry", 0) for port in stage.daemon.ports().values())
        until(lambda: stage.alive() or reentered() > 0, 20, "one that would circle")
        end = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < end:
            names = chance.sample(sorted(gateways), chance.randrange(1, 5))
            for name in names:
                stage.daemon.ask("DELETE", f"/v1/ports/{name}", timeout=30)
            if {"sa", "sb"} <= set(names):
                http(stage.daemon.control, "DELETE", "/v1/routers/s")
                stage.daemon.ask("POST", "/v1/routers", {"name": "s"})
                lead("s", "10.5.0.1")
            for name in names:
                status, said = add(name)
                stage.check(status == 200, f"{name} does not come back: {said}")
            changes += len(names)
            stage.alive()
    stage.notes.update(changes=changes, fault=stage.daemon.port("evil")["state"].get("fault"))
    stage.check(changes > 4, f"{changes} changes: nothing was tried")
    for pump in pumps:
        pump.guest.close()
    for name in ("evil", "z"):
        until(lambda: stage.daemon.port(name)["state"]["peer"] == "waiting", 20, "they have gone")
    # The way that honest guests go is there.
    stations = {name: it[0] for name, it in interfaces(stage).items()}
    a, z = Host(stage, "evil", EVIL, [four("10.5.0.9")]), Host(stage, "z", HONEST, [four("10.6.0.9")])

    def passes():
        a.send(ether(stations["ra"], a.station, IPV4, packet(four("10.5.0.9"), four("10.6.0.9"), datagram(b"for you"))))
        pause(0.05)
        a.come()
        return any(it[42:49] == b"for you" for it in z.come())
    until(passes, 20, "an honest packet from switch to switch")
    for host in (a, z):
        host.guest.close()


@attack("thirteenth")
def rtl8169_ends_that_move(stage):
    """An rtl8169's rings have their end elsewhere with each look, buffers of a byte or of 16 KiB, bases at the end of memory; its counters are dumped anywhere, and it is reset and reprogrammed in the middle of a flood."""
    stage.start("rtl8169:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    chance = random.Random(13)
    flood = stage.helper("flood", stage.at("other.sock"), 4 * stage.seconds, "--to", "ff:ff:ff:ff:ff:ff", "--bytes", 1000)
    counters = lambda: stage.daemon.port("evil")["counters"]
    RX, CPCR, DTCCR, MAC0, TCR = 0x10000, 0xE0, 0x10, 0x00, 0x40
    faults = 0
    with stage.during():
        card = Card(stage.at("evil.sock"))

        def begin(base=RX):
            card.write(0x37, 0x10, 1)
            for high, low, at in ((0x24, 0x20, 0), (0xE8, 0xE4, base)):
                card.write(high, at >> 32)
                card.write(low, at & 0xFFFFFFFF)
            card.write(0x37, 0x0C, 1)
            card.write(0x44, 0x0F)
            card.write(0xDA, 0x3FFF, 2)

        def receive(place, word):
            struct.pack_into("<Q", card.memory, RX + 16 * place + 8, 0x20000 + 16384 * (place % 128))
            words.put(card.memory, RX + 16 * place, word, "Q")

        begin()
        # The head is not at the beginning when the end comes before it.
        for place in range(1024):
            receive(place, OWN | 2048 | (EOR if place == 1023 else 0))
        until(lambda: counters()["out_frames"] > 0, 10, "frames for it")
        end = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < end:
            size = chance.choice((1, 1, 1, 3, 64, 0, 16383))
            for place in range(1024):
                receive(place, OWN | size | (EOR if chance.random() < 0.01 else 0))
            for place in range(256):
                word = OWN | FS | LS | (EOR if chance.random() < 0.02 else 0)
                word |= chance.choice((60, 1, 0xFFFF, 1500, LSO | chance.randrange(2048) << 16 | 9000, 1 << 49 | 0x81 << 32 | 100, 7 << 16 | 64))
                card.describe(place, word, chance.choice((BUFFERS, card.size - 100, card.size, 1 << 63, RX)))
            card.doorbell()
            for _ in range(20):
                to = chance.choice((0, RX, RX + 40, card.size - 64, card.size - 8, card.size, (1 << 64) - 64, chance.getrandbits(64)))
                card.write(DTCCR + 4, to >> 32)
                card.write(DTCCR, to & 0xFFFFFFC0 | 8)
                card.write(CPCR, chance.getrandbits(16), 2)
                card.write(0xE2, chance.getrandbits(16), 2)
                card.write(TCR, chance.getrandbits(32))
                for width in (1, 2, 4):
                    card.client.read(chance.randrange(64) * 4, chance.choice((0, 1)), width)
            card.write(MAC0, chance.getrandbits(32))
            card.client.write(chance.randrange(64) * 4, chance.getrandbits(32), 0, 4)
            stage.alive()
            if stage.daemon.port("evil")["state"].get("fault"):
                faults += 1
            begin(chance.choice((RX, RX, RX, card.size - 256, card.size - 4096, card.size, 1 << 40)))
            pause(0.01)
            if stage.daemon.port("evil")["state"].get("fault"):
                faults += 1
                begin()
        got = counters()["out_frames"]
        card.close()
    flood.end()
    stage.notes.update(got=got, faults=faults)
    stage.check(faults > 0 and got > 0, f"{faults} faults, {got} frames: nothing was tried")
    next_one(stage)


def halves(stage, up):
    """Frames of a routing daemon's that are none: lengths that contradict each other, attributes of any length, and deep ones."""
    fixed = struct.pack("<BBBBBBBBI", 2, 24, 0, 0, MAIN, BGP, 0, UNICAST, 0)
    sound = [attribute(DST, four("20.0.0.0")), attribute(OIF, struct.pack("<I", up)), attribute(GATEWAY, four("10.7.0.9"))]
    for which in range(len(sound)):
        for length in (0, 1, 3, 5, 7, 9, 4 + 16, 255, 0xFFFF):
            bad = struct.pack("<H", length) + sound[which][2:]
            yield frame(NEWROUTE, fixed + b"".join(sound[:which] + [bad] + sound[which + 1:]))
        for value in (b"", b"\1", bytes(3), bytes(5), bytes(16), bytes(17), bytes(1000)):
            kind = struct.unpack_from("<H", sound[which], 2)[0]
            yield frame(NEWROUTE, fixed + b"".join(sound[:which] + [attribute(kind, value)] + sound[which + 1:]))
    for prefix in (0, 25, 33, 128, 255):
        yield frame(NEWROUTE, struct.pack("<B", 2) + bytes([prefix]) + fixed[2:] + sound[0] + sound[1])
    for family in (0, 10, 28, 255):
        yield frame(NEWROUTE, bytes([family]) + fixed[1:] + b"".join(sound))
    # Hops within hops: struct rtnexthop has a length of its own.
    for length in (0, 1, 7, 8, 9, 16, 0xFFFF):
        hops = b"".join(struct.pack("<HBBI", length, 0, 255, up) + attribute(GATEWAY, four("10.7.0.9")) for _ in range(300))
        yield frame(NEWROUTE, fixed + sound[0] + attribute(MULTIPATH, hops))
    deep = sound[2]
    while len(deep) < 60_000:
        deep = attribute(0x8000 | MULTIPATH, struct.pack("<HBBI", min(0xFFFF, 8 + len(deep)), 0, 0, up) + deep)
    yield frame(NEWROUTE, fixed + sound[0] + deep)
    for value in (b"", bytes(1), bytes(7), bytes(9), bytes(8 * 257), struct.pack("<IBBH", 7, 0, 0, 0) * 256):
        yield frame(NEWNEXTHOP, bytes(8) + attribute(1, struct.pack("<I", 7)) + attribute(NHA_GROUP, value))
    whole = route(four("20.1.0.0"), 24, up, four("10.7.0.9"))
    for at, length in ((4, 0), (4, 15), (4, 17), (4, 1 << 31), (4, 0xFFFFFFFF)):
        yield whole[:at] + struct.pack("<I", length) + whole[at + 4:]
    yield struct.pack(">BBH", 1, 1, 0xFFFF) + bytes(0xFFFF - 4)
    yield struct.pack(">BBH", 1, 1, 4)


@attack("thirteenth", needs=("root",))
def half_messages_of_a_peer(stage):
    """A process that may speak to a router's control plane sends it half messages, attributes of any length, and connects in the middle of others' words; and another one listens in its place at another router."""
    space, taken = Namespace(stage), Namespace(stage, "taken")
    squatter = until(taken.listener, 10, "somebody listens in its place")
    stage.start(ports=["up=vhost-user:DIR/up.sock,router=r,address=10.7.0.1/16", "down=vhost-user:DIR/down.sock,router=q,address=10.8.0.1/16"],
                args=("--router", f"r,control={space.name},grace=1", "--router", f"q,control={taken.name},grace=1"))
    stage.leaves_kib = 64 << 10
    up = until(lambda: space.link("up"), 20, "the interface of its control plane")
    until(space.connect, 20, "it listens").close()
    count, chance = 2000, random.Random(26)
    honest = [route(struct.pack(">I", 0x1E000000 + (n << 8)), 24, up, four("10.7.0.9")) for n in range(count)]
    whole = b"".join(honest[:40])
    with stage.during():
        # One connection each: a frame that is cut, and one that has words in it that contradict each other.
        lies, tries = list(halves(stage, up)), 0
        for at, lie in enumerate(lies):
            if (peer := space.connect()) is not None:
                try:
                    peer.sendall(whole[:chance.randrange(len(whole))] if at % 2 else b"")
                    peer.sendall(lie + honest[at % count])
                    tries += 1
                except (BrokenPipeError, ConnectionResetError):
                    pass
                peer.close()
        # All in one, each behind a sound one.
        peer = until(space.connect, 10, "it listens")
        try:
            for lie in lies:
                peer.sendall(lie + honest[0])
        except (BrokenPipeError, ConnectionResetError):
            pass
        # Cut anywhere, with others that connect in between.
        waiting = []
        for at in range(0, len(honest[0]), 3):
            cut = until(space.connect, 10, "it listens")
            cut.sendall(honest[0][:at])
            waiting.append(cut)
            stage.alive()
        said = control(stage)
        stage.notes.update(tries=tries, malformed=said["malformed"], connections=said["connections"])
        stage.check(said["malformed"] > 20, f"{said['malformed']} messages were malformed: nothing was tried")
        for cut in waiting:
            cut.close()
        peer.close()
        # The real one comes, and all of its routes are in force: a byte at a time at first, and then with a pause in the middle of one.
        daemon = until(space.connect, 10, "it listens")
        for at in range(len(honest[0])):
            daemon.send(honest[0][at:at + 1])
        rest = b"".join(honest[1:])
        daemon.sendall(rest[:1001])
        pause(0.1)
        daemon.sendall(rest[1001:])
        until(lambda: stage.alive() or control(stage)["routes"] == count, 30, "exactly its routes are in force")
        stage.check(control(stage)["stale"] == 0, "its routes are stale")
        lines = len(stage.daemon.lines)
        stage.notes.update(lines=lines)
        stage.check(lines < 300, f"{lines} lines in the log")
        trouble = control(stage, "q").get("trouble")
        stage.check(trouble and "listen" in trouble, f"what is in the way of the other router is said to be {trouble!r}")
        squatter.close()
        until(taken.connect, 20, "it listens when the other one has gone").close()
        until(lambda: not control(stage, "q").get("trouble"), 10, "the trouble is over")
    daemon.close()
    until(lambda: control(stage)["routes"] == 0, 60, "they are gone with their daemon")
