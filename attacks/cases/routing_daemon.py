"""What a routing daemon, and the peers that it believes, tell a router."""

import random
import struct
import time

from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import Beside, pause
from outside.fpm import BGP, DST, GATEWAY, MAIN, NEWNEXTHOP, NEWROUTE, OIF, UNICAST, attribute, control, frame, group, next_hop, remove_route, route, route_by
from outside.host import EVIL, HONEST, IPV4, Host, Pump, datagram, ether, four, interfaces, packet
from outside.namespaces import Namespace
from outside.vhost import mac

MULTIPATH, NHA_GROUP = 9, 2


@attack(needs=("root",))
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


@attack(needs=("root",))
def hops_of_a_peer(stage):
    """A router's peers have its routing daemon make 2,000 groups of 254 next hops each."""
    space = Namespace(stage)
    stage.start(ports=["up=vhost-user:DIR/up.sock,router=r,address=10.7.0.1/16"], args=("--router", f"r,control={space.name},grace=1"))
    until(lambda: space.link("up"), 20, "the interface of its control plane")
    # The allocator keeps what was freed, and uses it again: rounds do not add up.
    stage.leaves_kib = 320 << 10
    up, daemon = space.link("up"), until(space.connect, 20, "its control plane listens")
    control = lambda: stage.daemon.ask("GET", "/v1/routers")["routers"][0]["control"]
    groups, members = 2000, 254
    before = stage.daemon.usage()["rss_kib"]
    with stage.during():
        daemon.sendall(b"".join(next_hop(1 + n, up, struct.pack(">I", 0x0A070100 + n)) for n in range(members)))
        # The first route is an honest one.
        daemon.sendall(route_by(four("20.0.0.0"), 24, 1))
        for n in range(groups):
            daemon.sendall(group(1000 + n, range(1, 1 + members)) + route_by(struct.pack(">I", 0x15000000 + (n << 8)), 24, 1000 + n))
        until(lambda: control()["routes"] == groups + 1, 60, "they are in force")
        grown = stage.daemon.usage()["rss_kib"] - before
        said = control()
        stage.notes.update(grown_mib=grown >> 10, hops=said.get("hops"), short=said.get("short"))
        stage.check(grown < 320 << 10, f"{groups * members} next hops take {grown >> 10} MiB")
        stage.check(said.get("short", 0) > 0, "there was room for all of them: nothing was tried")
        first = stage.daemon.ask("GET", "/v1/routers/r/explain?to=20.0.0.7", wanted=None)
        stage.notes["honest"] = str(first)[:200]
        # When most of them go the others get their next hops.
        for n in range(1700):
            daemon.sendall(remove_route(struct.pack(">I", 0x15000000 + (n << 8)), 24))
        try:
            until(lambda: control().get("short", 0) == 0, 30, "all ways have their next hops")
        except Failure:
            stage.check(False, f"with room for all, {control().get('short')} ways have no next hops")
    daemon.close()
    until(lambda: control()["routes"] == 0, 60, "they are gone with their daemon")


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


@attack(needs=("root",))
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
