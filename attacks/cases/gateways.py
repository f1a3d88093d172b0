"""Floods at a router and through it, and routers that come and go under them."""

import random
import socket
import struct
import time

from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import Beside, pause
from outside.fpm import control
from outside.host import ARP, EVIL, HONEST, IPV4, Host, Pump, arp, checksum, datagram, ether, four, interfaces, packet, to_port
from outside.namespaces import Namespace, drained, inside
from outside.vhost import mac

THIRD = "02:00:00:00:ee:03"


def ip(source, to, protocol, payload, ttl=64):
    return packet(source, to, payload, protocol, ttl)


def honest(stage, got, name, send, take):
    """Of 14 frames that `send` sends, some milliseconds apart, most are heard or answered, as `take` counts."""
    got[name] = 0
    take()
    for _ in range(14):
        send()
        start, came = time.monotonic(), 0
        # A loaded machine takes its time; what was refused never comes.
        while time.monotonic() - start < (0.05 if came else 5):
            pause(0.01)
            came += take()
        got[name] += came
    stage.check(got[name] >= 11, f"of 14 honest frames of kind {name}, {got[name]} are answered or heard")


@attack(needs=("root",))
def floods_at_a_gateway(stage):
    """A guest floods its switch's gateway with frames of each class for the control plane, and with packets that end there; another guest of that switch has to be heard, and to be told of its errors."""
    space = Namespace(stage)
    stage.start("vhost-user:DIR/evil.sock", ports=["y=vhost-user:DIR/y.sock,switch=evil", "gw=switch:evil,router=r,address=10.5.0.1/24"],
                args=("--router", f"r,control={space.name}"), neighbours=False)
    until(lambda: space.link("gw"), 20, "the interface of its control plane")
    station, own = interfaces(stage)["gw"][0], four("10.5.0.1")
    y = Host(stage, "y", HONEST, [four("10.5.0.3")])
    heard = space.frames("gw", 8, y.station[2:])
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
    got = {}

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
            honest(stage, got, kind, lambda: y.send(mine(make)), seen)
        # Unsolicited answers of stations that are not there, are the kernel's.
        pump.fill([ether(station, mac(EVIL), ARP, arp(2, mac(EVIL), four("10.5.0.2"), own, station)[14:])])
        was = refused("neighbours")
        until(lambda: stage.alive() or refused("neighbours") > was + 20_000, 30, "the flood of ARP")
        seen()
        announced = ether(station, y.station, ARP, arp(2, y.station, four("10.5.0.3"), own, station)[14:])
        honest(stage, got, "neighbours", lambda: y.send(announced), seen)
        dead = lambda source: ip(source, four("10.5.0.77"), 17, to_port(9), 1)
        drops = lambda: stage.daemon.port("gw")["counters"]["drops"].get("time_exceeded", 0)
        was = drops()
        pump.fill([evil(dead)])
        until(lambda: stage.alive() or drops() > was + 20_000, 30, "the flood of packets that end")
        y.come()
        honest(stage, got, "time exceeded", lambda: y.send(mine(dead)), lambda: sum(it[12:14] == b"\x08\0" and it[23] == 1 and it[34] == 11 for it in y.come()))
    stage.notes.update(got)
    for guest in (pump.guest, y.guest):
        guest.close()


@attack(needs=("root",))
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
    heard = {source: far.frames("sa", 26, four(source)) for source in ("10.2.0.9", "10.6.0.1")}
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
    got = {}

    def of_y():
        return len(drained(heard["10.2.0.9"], []))

    def of_control():
        return sum(it[23] == 17 for it in drained(heard["10.6.0.1"], []))

    def by_control(port):
        return lambda: speaker.sendto(bytes(24), ("10.6.0.2", port))

    with stage.during(), Beside(pump.turn, stage.cpus):
        # The router's kernel has asked for the other one's station before.
        until(lambda: (by_control(9)(), pause(0.05), of_control())[2], 20, "the first router's control plane is heard")
        # An echo of BFD comes back through a router with one hop less: so the flood has a neighbour's source.
        for kind, flood, others in (
                ("other", ip(four("10.1.0.9"), own, 17, to_port(9)), {"y": ip(four("10.2.0.9"), own, 17, to_port(9)), "control": 9}),
                ("bgp", ip(four("10.1.0.9"), own, 6, to_port(179)), {"y": ip(four("10.2.0.9"), own, 6, to_port(179))}),
                ("bfd", ip(four("10.6.0.77"), own, 17, to_port(3785), 255), {"control": 3784}),
                ("ospf", ip(four("10.1.0.9"), own, 89, bytes(24)), {"y": ip(four("10.2.0.9"), own, 89, bytes(24))})):
            pump.fill([evil(flood)])
            was = refused(kind)
            until(lambda: stage.alive() or refused(kind) > was + 20_000, 30, f"the flood of {kind}")
            if "y" in others:
                honest(stage, got, f"{kind} of a guest", lambda: y.send(mine(others["y"])), of_y)
            if "control" in others:
                honest(stage, got, f"{kind} of a control plane", by_control(others["control"]), of_control)
        dead = lambda source: ip(source, four("10.9.0.7"), 17, to_port(9), 2)
        was = drops()
        pump.fill([evil(dead(four("10.1.0.9")))])
        until(lambda: stage.alive() or drops() > was + 20_000, 30, "the flood of packets that end")
        y.come()
        told = lambda: sum(it[12:14] == b"\x08\0" and it[23] == 1 and it[34] == 11 for it in y.come())
        honest(stage, got, "time exceeded", lambda: y.send(mine(dead(four("10.2.0.9")))), told)
    stage.notes.update(got)
    for guest in (pump.guest, y.guest):
        guest.close()


@attack(needs=("root",))
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
    pump = Pump(stage, "evil", [first(n) for n in range(16384)])
    memory = lambda: int(next(line.split()[-1] for line in inside(space, "cat", "/proc/net/sockstat").splitlines() if line.startswith("FRAG:")))
    refused = lambda: sum(it["refused"] for it in control(stage)["classes"])

    def arrives(number):
        data = struct.pack(">HHHH", 520, 520, 8 + 2000, 0) + bytes(2000)
        for place, more in ((0, 1), (1400, 0)):
            peer.send(ether(stations["peer"], peer.station, IPV4, part(four("10.0.1.9"), four("10.0.1.1"), number, data[place:place + 1400], place, more)))
        start = time.monotonic()
        while time.monotonic() - start < 5:
            pause(0.02)
            peer.come()
            try:
                return len(service.recv(4096)) == 2000
            except BlockingIOError:
                continue
        return False

    with stage.during(), Beside(pump.turn, stage.cpus):
        until(lambda: stage.alive() or refused() > 20_000, 30, "the flood")
        end = time.monotonic() + 4 * stage.seconds
        while time.monotonic() < end:
            stage.alive()
            pause(0.1)
        held = memory()
        come = sum(arrives(n) for n in range(8))
    stage.notes.update(held_kib=held >> 10, come=come)
    stage.check(come >= 7, f"{come} of 8 packets in two fragments of a neighbour at another port arrive; the kernel has {held >> 10} KiB of fragments")
    for each in (pump.guest, peer.guest):
        each.close()


@attack(needs=("root",))
def routers_that_end_under_traffic(stage):
    """Packets whose heads lie in pieces and change go round through two routers while ports, a router and a switch go and come, and the daemon is killed: what came in went out, or was dropped by name."""
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
        return [Pump(stage, "evil", frames(stations["ra"], EVIL, "10.5.0.9"), pieces=4), Pump(stage, "z", frames(stations["sb"], THIRD, "10.6.0.9")), Pump(stage, "y", frames(stations["y"], HONEST, "10.7.0.9"))]

    def work_of(all_of_them):
        def work():
            for pump in all_of_them:
                pump.turn()
            all_of_them[0].scribble(chance)
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
