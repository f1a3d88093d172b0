"""What was tried on 24 November 2026: receivers that stay below each limit or are many, routers behind routers, headers that the kernel knows, and daemons that are killed meanwhile."""

import ctypes
import os
import random
import socket
import struct
import subprocess
import time

from outside import vhost
from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import pause
from outside.fpm import Namespace
from outside.host import IPV4, IPV6, Host, Pump, checksum, datagram, ether, four, interfaces, packet, packet6, solicitation
from outside.vhost import Guest, mac

from .eleventh import Beside
from .fourteenth import drained, inside, optioned
from .seventh import Time, undisturbed
from .sixth import HUGE, Slow, huge_file
from .thirteenth import EVIL, HONEST, control, ip, six, to_port

BROADCAST = "ff:ff:ff:ff:ff:ff"
THIRD = "02:00:00:00:ee:03"


def frames_of(space, name, source):
    """A socket that has the IPv4 packets which come to interface `name` there from the address `source`: those of others are not even queued."""
    code = [(0x20, 0, 0, 26), (0x15, 0, 1, struct.unpack(">I", source)[0]), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))

    def make():
        frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        frames.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", len(code), ctypes.addressof(program)))  # SO_ATTACH_FILTER
        frames.bind((name, 3))  # ETH_P_ALL
        return frames
    return space.inside(make)


@attack("fifteenth")
def claims_at_a_gateway(stage):
    """A guest claims 60,000 addresses at its switch's gateway, whose router has room for 8,192 neighbours: other guests of that switch must be found, and stay."""
    count = 20
    new = [four(f"10.5.200.{1 + n}") for n in range(count)]
    stage.start("vhost-user:DIR/evil.sock", ports=["y=vhost-user:DIR/y.sock,switch=evil", "gw=switch:evil,router=r,address=10.5.0.1/16",
                                                   "z=vhost-user:DIR/z.sock,router=r,address=10.6.0.1/24"], args=("--router", "r"))
    stations = interfaces(stage)
    station, link_local = stations["gw"]
    evil, z = Host(stage, "evil", EVIL), Host(stage, "z", THIRD, [four("10.6.0.9")])
    claimed = 0

    def claim(claims):
        nonlocal claimed
        for _ in range(claims):
            claimed += 1
            source = b"\xfe\x80" + bytes(6) + struct.pack(">Q", 0x1234_5678_0000_0000 + claimed)
            evil.send(solicitation(evil.station, source, link_local, station))
        evil.come()

    with stage.during():
        claim(60_000)
        known = stage.daemon.ask("GET", "/v1/neighbours")["neighbours"]
        stage.notes["places"] = places = sum(n["port"] == "gw" for n in known)
        stage.check(places > 8000, f"{places} places are the attacker's: nothing was tried")
        y, found = Host(stage, "y", HONEST, new), set()

        def all_of_them():
            for to in set(new) - found:
                z.send(ether(stations["z"][0], z.station, IPV4, packet(four("10.6.0.9"), to, datagram(b"for you"))))
            claim(100)
            z.come()
            found.update(frame[30:34] for frame in y.come() if frame[42:49] == b"for you")
            return len(found) == count
        try:
            until(all_of_them, 10, "reached")
        except Failure:
            stage.check(False, f"{len(found)} of {count} stations at another port of the switch are reached from elsewhere")
        asked = y.asked
        for _ in range(20):
            claim(200)
            all_of_them()
        stage.notes.update(found=len(found), asked=y.asked - asked)
    for host in (evil, y, z):
        host.guest.close()


@attack("fifteenth", needs=("root",))
def floods_through_a_router(stage):
    """Guests stand behind one router, whose neighbour on a switch is another one. One of them floods that one's control plane, and has it send errors: another guest, and the first router's control plane, have to be heard and told."""
    near, far = Namespace(stage, "near"), Namespace(stage, "far")
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.1.0.1/24", "y=vhost-user:DIR/y.sock,router=r,address=10.2.0.1/24",
                       "ra=switch:evil,router=r,address=10.6.0.1/24", "sa=switch:evil,router=s,address=10.6.0.2/24"],
                args=("--router", f"r,control={near.name}", "--router", f"s,control={far.name}"), neighbours=False)
    until(lambda: far.link("sa") and near.link("ra"), 20, "the interfaces of their control planes")
    for name, prefix, gateway in (("r", "10.9.0.0/16", "10.6.0.2"), ("s", "10.9.0.0/16", "10.6.0.1"), ("s", "10.0.0.0/8", "10.6.0.1")):
        status, said = http(stage.daemon.control, "POST", f"/v1/routers/{name}/routes", {"prefix": prefix, "via": gateway})
        stage.check(status == 200, f"no route: {said}")
    until(lambda: "10.6.0.1/24" in inside(near, "ip", "address"), 20, "its addresses")
    stations = {name: it[0] for name, it in interfaces(stage).items()}
    y, own = Host(stage, "y", HONEST, [four("10.2.0.9")]), four("10.6.0.2")
    mine = lambda packet: ether(stations["y"], y.station, IPV4, packet)
    evil = lambda packet: ether(stations["evil"], mac(EVIL), IPV4, packet)
    heard = {source: frames_of(far, "sa", four(source)) for source in ("10.2.0.9", "10.6.0.1")}
    for each in heard.values():
        stage.cleanup(each.close)

    def speaks():
        speaker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        speaker.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255)
        speaker.bind(("10.6.0.1", 0))
        return speaker
    speaker = near.inside(speaks)
    stage.cleanup(speaker.close)
    pump = Pump(stage, "evil", [evil(ip(four("10.1.0.9"), own, 17, to_port(9)))])
    pump.turn()
    refused = lambda kind: sum(it["refused"] for it in control(stage, "s")["classes"] if it["class"] == kind)
    drops = lambda: stage.daemon.port("sa")["counters"]["drops"].get("time_exceeded", 0)
    sent, least, got = 14, 11, {}

    def of_y():
        return len(drained(heard["10.2.0.9"], []))

    def of_control():
        return sum(it[23] == 17 for it in drained(heard["10.6.0.1"], []))

    def by_control(port):
        return lambda: speaker.sendto(bytes(24), ("10.6.0.2", port))

    def count(name, send, take):
        """How many of `sent` come, which are some milliseconds apart."""
        got[name] = 0
        take()
        for _ in range(sent):
            send()
            start, came = time.monotonic(), 0
            # A loaded machine takes its time; what was refused never comes.
            while time.monotonic() - start < (0.05 if came else 1):
                pause(0.01)
                came += take()
            got[name] += came
        stage.check(got[name] >= least, f"of {sent} honest frames of kind {name}, {got[name]} are answered or heard")

    with stage.during(), Beside(pump.turn, stage.cpus):
        # The router's kernel has asked for the other one's station before.
        until(lambda: (by_control(9)(), pause(0.05), of_control())[2], 20, "the first router's control plane is heard")
        # An echo of BFD comes back through a router with one hop less: so the flood has a neighbour's source.
        for kind, flood, honest in (
                ("other", ip(four("10.1.0.9"), own, 17, to_port(9)), {"y": ip(four("10.2.0.9"), own, 17, to_port(9)), "control": 9}),
                ("bgp", ip(four("10.1.0.9"), own, 6, to_port(179)), {"y": ip(four("10.2.0.9"), own, 6, to_port(179))}),
                ("bfd", ip(four("10.6.0.77"), own, 17, to_port(3785), 255), {"control": 3784}),
                ("ospf", ip(four("10.1.0.9"), own, 89, bytes(24)), {"y": ip(four("10.2.0.9"), own, 89, bytes(24))})):
            pump.fill([evil(flood)])
            was = refused(kind)
            until(lambda: stage.alive() or refused(kind) > was + 20_000, 30, f"the flood of {kind}")
            if "y" in honest:
                count(f"{kind} of a guest", lambda: y.send(mine(honest["y"])), of_y)
            if "control" in honest:
                count(f"{kind} of a control plane", by_control(honest["control"]), of_control)
        dead = lambda source: ip(source, four("10.9.0.7"), 17, to_port(9), 2)
        was = drops()
        pump.fill([evil(dead(four("10.1.0.9")))])
        until(lambda: stage.alive() or drops() > was + 20_000, 30, "the flood of packets that end")
        y.come()
        told = lambda: sum(it[12:14] == b"\x08\0" and it[23] == 1 and it[34] == 11 for it in y.come())
        count("time exceeded", lambda: y.send(mine(dead(four("10.2.0.9")))), told)
    stage.notes.update(got)
    for guest in (pump.guest, y.guest):
        guest.close()


@attack("fifteenth", needs=("root",))
def receivers_of_one_owner(stage):
    """Twelve receivers with buffers in untouched huge pages get frames of a sender that is theirs, too: it pays for them."""
    count, slots, pages = 12, 8, 6
    names = [f"e{n}" for n in range(count)]
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{name}=vhost-user:DIR/{name}.sock,switch=evil" for name in names])
    slow = []
    for name in names:
        size = (8 + slots * pages) * HUGE
        guest = Guest(stage.at(f"{name}.sock"), size, fd=huge_file(stage, size), features=vhost.VERSION_1 | vhost.INDIRECT, start=False)
        stage.cleanup(guest.close)
        for slot in range(slots):
            for i in range(pages):
                last = i == pages - 1
                struct.pack_into("<QIHH", guest.memory, 4 * HUGE + 4096 * slot + 16 * i, (8 + slot * pages + i) * HUGE, 2048 if last else 6,
                                 vhost.WRITE | (0 if last else vhost.NEXT), i + 1)

        def prepare(slot, guest=guest):
            vhost.punch(guest.fd, (8 + slot * pages) * HUGE, pages * HUGE, True)
            guest.rx.put(slot, 4 * HUGE + 4096 * slot, 16 * pages, vhost.INDIRECT_FLAG)
        slow.append(Slow(guest, slots, prepare))
        guest.front.table([(0, size, vhost.USER, 0)], [guest.fd])
        guest.start(0, guest.rx)
        guest.start(1, guest.tx)
        guest.front.sync()
    seconds = max(4 * stage.seconds, 4)
    with stage.during():
        for each in slow:
            each.__enter__()
        try:
            flood = stage.helper("flood", stage.at("evil.sock"), seconds, "--to", BROADCAST, "--rate", 4000)
            flood.end(seconds + 60)
            state = stage.daemon.port("evil")["state"]
            stage.notes.update(got=sum(each.got for each in slow), charged_s=round(state["service"]["busy_ns"] / 1e9, 2))
            stage.check(state["slow"]["batches"] > 0, "no batch took long: nothing was tried")
        finally:
            for each in slow:
                each.__exit__()
    for each in slow:
        each.guest.front.close()


@attack("fifteenth", needs=("root",))
def blamed_for_a_sender(stage):
    """A sender's frames end in pages that its VMM punches out meanwhile, so that deliveries to an honest receiver take long: none of that one's frames may be dropped as a slow receiver's."""
    # Not where 2 MiB begin: a frame that crosses that has its pages looked at before.
    hole, first = 64 << 20, (16 << 20) + 0x3000
    stage.start("vhost-user:DIR/evil.sock", ports=["victim=vhost-user:DIR/victim.sock,switch=evil", "honest=vhost-user:DIR/honest.sock,switch=evil"])
    victim = Host(stage, "victim", HONEST)
    victim.send(vhost.frame(BROADCAST, HONEST))
    honest = Host(stage, "honest", THIRD)
    size = (32 << 20) + hole
    guest = Guest(stage.at("evil.sock"), size)
    stage.cleanup(guest.close)
    data = bytes(12) + vhost.frame(HONEST, EVIL, 1500)
    # The head is in a page that stays, and the end in the first of those that do not.
    at = first - 12 - 700
    guest.memory[at:at + 712] = data[:712]
    for slot in range(guest.tx.size):
        guest.tx.put(slot, at, len(data))
    for slot in range(guest.tx.size):
        struct.pack_into("<H", guest.memory, guest.tx.avail + 4 + 2 * slot, slot)

    def punch():
        vhost.punch(guest.fd, first, hole, False)
        guest.tx.index(guest.tx.used_index() + 8)
        guest.tx.ring()
        vhost.punch(guest.fd, first, hole, True)

    sent = got = 0
    with stage.during(), Beside(punch, stage.cpus):
        end = time.monotonic() + 5 * stage.seconds
        while time.monotonic() < end:
            stage.alive()
            honest.send(*[vhost.frame(HONEST, THIRD, 1000)] * 16)
            sent += 16
            pause(0.002)
            got += sum(it[6:12] == mac(THIRD) for it in victim.come())
        port, evil = stage.daemon.port("victim"), stage.daemon.port("evil")
        drops = {why: n for why, n in port["counters"]["drops"].items() if n}
        stage.notes.update(sent=sent, got=got, drops=drops, evil=evil["state"]["slow"], fault=evil["state"].get("fault"), slow=port["state"]["slow"], frames=evil["counters"]["in_frames"])
        stage.check(not drops.get("overrun"), f"an honest receiver lost {drops} of {sent} frames of an honest sender")
        stage.check(not port["state"].get("fault"), f"the victim: {port['state'].get('fault')}")
    for host in (victim, honest):
        host.guest.close()
    guest.close()


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


@attack("fifteenth", needs=("root",))
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
        pause(0.3)
        take()
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


@attack("fifteenth", needs=("root", "tun"))
def frames_that_cost_the_host(stage):
    """A guest floods a TAP port behind which the kernel takes long for each frame: none of another guest's frames there may be dropped as if the interface were a slow guest."""
    name = f"scatk{os.getpid() % 100_000}"
    stage.start("vhost-user:DIR/evil.sock", ports=["honest=vhost-user:DIR/honest.sock,switch=evil", f"tap=tap:{name},switch=evil"], neighbours=False)
    undisturbed(stage)
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    try:
        subprocess.run(["tc", "qdisc", "add", "dev", name, "ingress"], check=True, capture_output=True)
        # The kernel compares each frame with all of them.
        filters = "".join(f"filter add dev {name} ingress protocol all prio {n + 1} u32 match u32 {n + 1:#x} 0xffffffff at 20\n" for n in range(1000))
        subprocess.run(["tc", "-batch", "-"], input=filters, text=True, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(f"the kernel has no filters for an interface: {error}") from None
    code = [(0x20, 0, 0, 8), (0x15, 0, 1, struct.unpack(">I", mac(HONEST)[2:])[0]), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    stage.cleanup(heard.close)
    heard.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", len(code), ctypes.addressof(program)))  # SO_ATTACH_FILTER
    heard.bind((name, 3))
    honest, sent = Host(stage, "honest", HONEST), 0
    counters = lambda: stage.daemon.port("tap")["counters"]
    with stage.during():
        flood = stage.helper("flood", stage.at("evil.sock"), max(3 * stage.seconds, 3), "--to", "02:00:00:00:00:77")
        until(lambda: stage.alive() or stage.daemon.port("evil")["counters"]["in_frames"] > 20_000, 20, "the flood")
        come = []
        while flood.process.poll() is None:
            honest.send(vhost.frame("02:00:00:00:00:78", HONEST))
            sent += 1
            pause(0.01)
            drained(heard, come)
        flood.end()
        until(lambda: stage.alive() or honest.guest.tx.used_index() == honest.guest.tx.next, 10, "all are taken")
        pause(0.1)
        drained(heard, come)
        drops = {why: n for why, n in counters()["drops"].items() if n}
        stage.notes.update(sent=sent, come=len(come), drops=drops, out=counters()["out_frames"])
    stage.check(sent > 20, f"{sent} honest frames: nothing was tried")
    stage.check(not drops.get("overrun") and not drops.get("receiver_busy"), f"{len(come)} of {sent} honest frames come; the interface's drops are {drops}")
    honest.guest.close()


@attack("fifteenth")
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
        """The same packet in every way that a header has."""
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


@attack("fifteenth", needs=("root",))
def eight_routers_on_a_switch(stage):
    """Eight routers on one switch lead packets to each other, each of a batch another way: what that takes is its sender's time, and others have theirs."""
    count = 8
    names = [f"r{n}" for n in range(count)]
    stage.start("vhost-user:DIR/evil.sock", ports=[f"g{n}=switch:evil,router=r{n},address=10.5.0.{1 + n}/24" for n in range(count)],
                args=[it for name in names for it in ("--router", name)], ready=60)
    for n in range(count):
        for to in range(count):
            if to != n:
                # Whatever leads to another router leads on from there.
                route = {"prefix": f"10.{120 + (n + to) % count}.0.0/16", "via": f"10.5.0.{1 + to}"}
                http(stage.daemon.control, "POST", f"/v1/routers/r{n}/routes", route, timeout=60)
    stations = {name: it[0] for name, it in interfaces(stage).items()}
    chance = random.Random(16)
    to = lambda: four(f"10.{120 + chance.randrange(count)}.{chance.randrange(256)}.9")
    some = lambda: ether(stations[f"g{chance.randrange(count)}"], mac(EVIL), IPV4, packet(four("10.5.0.99"), to(), datagram(bytes(30)), ttl=255))
    pump = Pump(stage, "evil", [some() for _ in range(1024)])
    dropped = lambda: sum(port["counters"]["drops"].get("reentry", 0) for port in stage.daemon.ports().values())
    with stage.during(), Beside(pump.turn, stage.cpus):
        until(lambda: stage.alive() or dropped() > 1_000, 30, "packets go from router to router")
        undisturbed(stage)
        time_of = Time(stage)
        pause(3 * stage.seconds)
        time_of.check()
        evil = stage.daemon.port("evil")
        stage.notes.update(reentered=dropped(), frames=evil["counters"]["in_frames"], slow=evil["state"]["slow"])
    pump.guest.close()


@attack("fifteenth", needs=("root",))
def routers_that_end_under_traffic(stage):
    """Packets go round through two routers with control planes while ports, a router and a switch go and come, and the daemon is killed: what came in went out, or was dropped by name."""
    near, far = Namespace(stage, "near"), Namespace(stage, "far")
    gateways = {"ra": ("evil", "r", "10.5.0.1/24"), "sa": ("evil", "s", "10.5.0.2/24"), "rb": ("far", "r", "10.6.0.1/24"), "sb": ("far", "s", "10.6.0.2/24")}
    ports = ["z=vhost-user:DIR/z.sock,switch=far", "y=vhost-user:DIR/y.sock,router=r,address=10.7.0.1/24"]
    stage.start("vhost-user:DIR/evil.sock", switches=("far",), reconnect=True, args=("--router", f"r,control={near.name}", "--router", f"s,control={far.name}"),
                ports=ports + [f"{name}=switch:{on},router={of},address={net}" for name, (on, of, net) in gateways.items()])
    post = lambda what, body: http(stage.daemon.control, "POST", what, body, timeout=30)
    gone = lambda what: http(stage.daemon.control, "DELETE", what, timeout=30)[0]
    chance = random.Random(154)

    def lead():
        for of, gateway in (("r", "10.6.0.2"), ("s", "10.5.0.1")):
            post(f"/v1/routers/{of}/routes", {"prefix": "10.9.0.0/16", "via": gateway})

    def pumps():
        stations = {name: it[0] for name, it in interfaces(stage).items()}
        to = [four(it) for it in ("10.9.0.9", "10.6.0.77", "10.5.0.2", "10.6.0.2", "10.7.0.9", "10.77.0.1")]
        frames = lambda station, by, source: [ether(station, mac(by), IPV4, packet(four(source), chance.choice(to), datagram(bytes(chance.choice((0, 30, 1400)))), ttl=chance.choice((64, 255, 2, 3)))) for _ in range(256)]
        return [Pump(stage, "evil", frames(stations["ra"], EVIL, "10.5.0.9")), Pump(stage, "z", frames(stations["sb"], THIRD, "10.6.0.9")), Pump(stage, "y", frames(stations["y"], HONEST, "10.7.0.9"))]

    def work_of(all_of_them):
        def work():
            for pump in all_of_them:
                pump.turn()
        return work

    reentered, kills, changes = 0, 0, 0
    with stage.during():
        for turn in range(4 if stage.full else 2):
            lead()
            all_of_them = pumps()
            dropped = lambda: sum(port["counters"]["drops"].get("reentry", 0) for port in stage.daemon.ports().values())
            with Beside(work_of(all_of_them), stage.cpus):
                until(lambda: stage.alive() or dropped() > 0, 20, "packets go round")
                end = time.monotonic() + 2 * stage.seconds
                while time.monotonic() < end:
                    names = chance.sample(sorted(gateways), chance.randrange(1, 5))
                    for name in names:
                        gone(f"/v1/ports/{name}")
                    # Refused while ports stand on it; otherwise it goes, and comes.
                    if gone("/v1/routers/s") == 200:
                        post("/v1/routers", {"name": "s", "control": far.name})
                    if chance.random() < 0.3:
                        gone("/v1/switches/far")
                    for name in names:
                        on, of, net = gateways[name]
                        status, said = post("/v1/ports", {"name": name, "kind": "switch", "where": on, "router": of, "address": net})
                        stage.check(status == 200, f"{name} does not come back: {said}")
                    lead()
                    changes += len(names)
                    reentered += dropped()
                    stage.alive()
                if turn % 2 == 0:
                    stage.daemon.process.kill()
                    stage.daemon.process.wait()
                    kills += 1
            if turn % 2 == 0:
                if not stage.daemon.start():
                    raise Failure(f"it does not start again: {stage.daemon.ending()}")
                got = stage.neighbours.got()
                until(lambda: stage.alive() or stage.neighbours.got() > got, 20, "neighbours' traffic after a restart")
            for pump in all_of_them:
                pump.guest.close()
            for name in ("evil", "z", "y"):
                until(lambda: stage.alive() or stage.daemon.port(name)["state"]["peer"] == "waiting", 20, f"the guest of {name} has gone")
            stage.conserved()
    stage.notes.update(reentered=reentered, kills=kills, changes=changes)
    stage.check(changes > 4 and kills, f"{changes} changes, {kills} kills: nothing was tried")
    lead()
    stations = {name: it[0] for name, it in interfaces(stage).items()}
    a, z = Host(stage, "evil", EVIL, [four("10.5.0.9")]), Host(stage, "z", THIRD, [four("10.6.0.9")])

    def passes():
        a.send(ether(stations["ra"], a.station, IPV4, packet(four("10.5.0.9"), four("10.6.0.9"), datagram(b"for you"))))
        pause(0.05)
        a.come()
        return any(it[42:49] == b"for you" for it in z.come())
    until(passes, 20, "an honest packet from switch to switch")
    for host in (a, z):
        host.guest.close()
    stage.first_pid = stage.daemon.pid
    stage.neighbours.end()
    stage.conserved()
    stage.daemon.stop()
    stage.spared.add("end")
