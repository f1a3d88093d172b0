"""A router's table of neighbours, and who fills it."""

import struct
import time

from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import Beside, pause
from outside.fpm import route
from outside.host import EVIL, HONEST, IPV4, Host, Pump, datagram, ether, four, interfaces, packet, solicitation
from outside.namespaces import Namespace
from outside.vhost import mac

THIRD = "02:00:00:00:ee:03"


@attack()
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


@attack(needs=("root",), most=True)
def gateways_of_a_peer(stage):
    """A router's peer says of 12,000 networks that each has a gateway of its own on their link, and its routing daemon passes that on: neighbours at other ports must be found."""
    space = Namespace(stage)
    stage.start(ports=["up=vhost-user:DIR/up.sock,router=r,address=10.7.0.1/16", "web=vhost-user:DIR/web.sock,router=r,address=10.8.0.1/16"],
                args=("--router", f"r,control={space.name},grace=1"))
    # Tables and groups that nothing leads to are given back with the next change of a route.
    stage.leaves_kib = 64 << 10
    until(lambda: space.link("up"), 20, "the interfaces of its control plane")
    # The tables of routes keep the memory that they have grown to.
    stage.used_before["rss_kib"] += 32 << 10
    up, daemon = space.link("up"), until(space.connect, 20, "its control plane listens")
    routers, count = interfaces(stage), 20
    new = {four(f"10.8.200.{1 + n}") for n in range(count)}
    host, web = Host(stage, "up", "02:00:00:00:ee:01"), Host(stage, "web", "02:00:00:00:ee:02", new)
    with stage.during():
        for n in range(12_000):
            daemon.sendall(route(struct.pack(">I", 0x14000000 + (n << 8)), 24, up, struct.pack(">I", 0x0A070100 + n)))
        until(lambda: stage.daemon.ask("GET", "/v1/routers")["routers"][0]["control"]["routes"] == 12_000, 60, "they are in force")
        found = set()

        def all_of_them():
            for to in new - found:
                host.send(ether(routers["up"][0], host.station, IPV4, packet(four("10.7.0.5"), to, datagram(b"for you"))))
            host.come()
            found.update(frame[30:34] for frame in web.come() if frame[42:49] == b"for you")
            return found >= new

        try:
            until(all_of_them, 20, "reached")
        except Exception:
            stage.check(False, f"{len(found)} of {count} stations at another port are reached")
        known = stage.daemon.ask("GET", "/v1/neighbours")["neighbours"]
        stage.notes["gateways"] = gateways = sum(it["gateway"] for it in known)
        stage.check(gateways > 3000, f"{gateways} places are gateways': nothing was tried")
    daemon.close()
    until(lambda: stage.daemon.ask("GET", "/v1/routers")["routers"][0]["control"]["routes"] == 0, 30, "they are gone with their daemon")
    for it in (host, web):
        it.guest.close()


@attack()
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
                start, asked = time.monotonic(), z.asked
                y.send(ether(routers["y"][0], y.station, IPV4, packet(four("10.0.1.2"), each, datagram(b"for you"))))
                while each not in found and z.asked == asked and time.monotonic() - start < 5:
                    pause(0.005)
                    y.come()
                    found.update(it[30:34] for it in z.come() if it[42:49] == b"for you")
                pause(0.05)  # for the router to hear the answer
    stage.notes.update(found=len(found), looked_for=dropped())
    stage.check(len(found) >= count - 3, f"{len(found)} of {count} stations are found by two packets each")
    for guest in (pump.guest, y.guest, z.guest):
        guest.close()
