"""What was found on 23 November 2026: an end of a pipe between two looks and in memory that waits, and what a router's peers have it remember."""

import ctypes
import mmap
import multiprocessing
import os
import random
import struct
import time

from outside import vhost, words
from outside.case import attack
from outside.daemon import until
from outside.fpm import Namespace, route
from outside.host import IPV4, Host, datagram, ether, four, interfaces, packet
from outside.ptnet import CREATE, DELETE, GUEST, HOST, KICKS, Nic

from .fourth import refused, taken_over
from .pipes import PORTS, ends, gone, place
from .realtek import Card, next_one

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
PUNCH = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


class Beside:
    """`work`, again and again, in a process of its own (on `cpus`), until the block ends."""

    def __init__(self, work, cpus=None):
        self.stop = multiprocessing.get_context("fork").Event()

        def run():
            if cpus:
                os.sched_setaffinity(0, cpus)
            while not self.stop.is_set():
                work()
            os._exit(0)

        self.process = multiprocessing.get_context("fork").Process(target=run, daemon=True)

    def __enter__(self):
        self.process.start()

    def __exit__(self, *_):
        self.stop.set()
        self.process.join(20)
        self.process.kill()


@attack("eleventh")
def pipe_head_that_flips(stage):
    """An end of a pipe changes its head between one that is no slot and one that its partner has, so that a look finds the first and the visit the second."""
    stage.start(ports=PORTS)
    evil, mate = ends(stage)
    given, released = 300, 50
    for slot in range(given):
        evil.slot(0, slot, 2 + slot, 60)
    evil.index(0, given)
    evil.client.write(KICKS, 0)
    until(lambda: place(mate, 1)[1] == given, 10, "the frames come")
    mate.index(1, released)
    until(lambda: place(evil, 0)[0] == released, 10, "some are given back")

    def flip():
        for _ in range(2000):
            words.put(evil.memory, GUEST, 0xFFFFFFFF)
            words.put(evil.memory, GUEST, released + 10)

    stops, wrong = 0, None
    with stage.during(), Beside(flip):
        stop = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < stop and wrong is None:
            evil.client.write(KICKS, 0)
            shown = place(mate, 1)[1]
            if released < shown < given:
                wrong = shown
            if stage.daemon.port("evil")["state"].get("fault"):
                stops += 1
                evil.command(DELETE)
                evil.command(CREATE)
            stage.alive()
    stage.notes.update(stops=stops)
    stage.check(wrong is None, f"slots up to {wrong} are in its partner's hands twice")
    stage.check(stops > 0, "it was never stopped: nothing was tried")
    # Its partner has done nothing wrong, and goes on.
    mate.index(1, place(mate, 1)[1])
    stage.check(not stage.daemon.port("mate")["state"].get("fault"), "its partner is stopped for it")
    gone(stage, (evil, mate))


@attack("eleventh")
def pipe_receiver_that_stalls(stage):
    """The receiving end of a pipe punches out the page with its indices, and no other one, while its partner sends: whose memory it is has to pay."""
    stage.start(ports=PORTS)
    mate = Nic(stage.at("mate.sock"))
    evil = Nic(stage.at("evil.sock"), create=False)
    for nic in (mate, evil):
        stage.cleanup(nic.close)
    size, edge = 2 << 30, evil.size
    fd = vhost.memfd(size)
    memory = mmap.mmap(fd, size)
    evil.client.map(edge, size, fd)
    # The block on which it sends is the last one of the small memory, that on which it receives the first one of the large.
    evil.blocks(guest=edge - 64)
    stage.check(evil.command(CREATE) == 0, "it cannot begin")

    def punch():
        libc.fallocate(fd, 0, 1 << 20, size - (1 << 20))
        libc.fallocate(fd, PUNCH, 0, size)

    def exchange():
        """The honest end sends, and the other one releases."""
        sent, taken = place(mate, 0)[0], place(evil, 1)[1]
        mate.index(0, (sent + 1) % mate.rings[0][1])
        for at in (4, 0):
            words.put(memory, at, taken)
        time.sleep(0.0005)

    state = {}
    with stage.during(), Beside(punch), Beside(exchange):
        stop = time.monotonic() + 20
        while time.monotonic() < stop:
            state = {name: stage.daemon.port(name)["state"] for name in ("evil", "mate")}
            if any("memory_stalled" in str(it.get("fault")) for it in state.values()):
                break
            # The owner of the memory would not have so many in a row by chance.
            if sum(it["overrun"]["rests"] for it in state.values()) >= 5:
                break
            if state["evil"].get("fault"):
                evil.command(DELETE)
                evil.command(CREATE)
            stage.alive()
            time.sleep(0.02)
    overrun = {name: it["overrun"]["total_us"] for name, it in state.items()}
    stage.notes.update(overrun)
    stage.check(overrun["mate"] == 0, f"the honest sender has an overrun of {overrun['mate']} us")
    stage.check(not state["mate"].get("fault"), f"the honest sender is stopped: {state['mate'].get('fault')}")
    stage.check(sum(overrun.values()) > 0, "the core did not wait: nothing was tried")
    for nic in (mate, evil):
        nic.client.close()
        nic.device.client.close()
    memory.close()
    os.close(fd)


@attack("eleventh", needs=("root",))
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


@attack("eleventh", needs=("root",))
def broker_in_namespaces(stage):
    """A daemon with a control plane that was taken over has its broker listen, and change interfaces that are not its own, in that namespace and in others."""
    space, other = Namespace(stage), Namespace(stage, "other")
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.7.0.1/24"], args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil"), 20, "the interface of its control plane")
    broker, mtu = taken_over(stage), 1280
    address = lambda name: broker.ask("AddressIn", netns=space.path, name=name, address="10.9.9.9", len=24, there=True)
    with stage.during():
        for port in (179, 2601, 22):
            refused(stage, f"a listener at port {port}", broker.ask("Inside", netns=space.path, socket={"Listen": port}))
        refused(stage, "an address of lo", address("lo"))
        refused(stage, "the MTU of lo", broker.ask("MtuIn", netns=space.path, name="lo", mtu=mtu))
        for path in (other.path, f"/proc/{os.getpid()}/ns/net", "/etc/passwd"):
            refused(stage, "netlink elsewhere", broker.ask("Inside", netns=path, socket="Ask"))
            refused(stage, "a TAP elsewhere", broker.ask("TapIn", netns=path, name="evil", mac=None, mtu=1500, stays=False))
        # It is the right request: where the TAP is its own, it is done.
        answer = address("evil")
        answer.close()
        stage.check(answer.done, f"an address of its own interface: {answer}")


@attack("eleventh")
def rtl8169_status_block(stage):
    """An rtl8169's status block is anything at any time, moves under its rings, lies in them, and at last where no memory is."""
    stage.start("rtl8169:DIR/evil.sock,csb=on")
    chance = random.Random(70)
    low, high = 0x70, 0x74
    with stage.during():
        card = Card(stage.at("evil.sock"))
        end = time.monotonic() + stage.seconds
        while time.monotonic() < end:
            block = chance.choice((0x10000, 0, 0x4000, card.size - 4096))
            card.write(high, 0)
            card.write(low, block)
            for _ in range(200):
                card.memory[block:block + 128] = chance.randbytes(128)
                words.put(card.memory, block + 12, 1)
                place = chance.randrange(1024)
                card.describe(place, 1 << 31 | 3 << 28 | chance.randrange(60, 9000), chance.randrange(0x20000, card.size - 70000))
            card.doorbell()
            if stage.daemon.port("evil")["state"].get("fault"):
                card.start()
        card.start()
        card.write(high, 1 << 20)
        card.write(low, 0x1000)
        card.doorbell()
        until(lambda: stage.daemon.port("evil")["state"].get("fault"), 10, "the fault")
        card.close()
    next_one(stage)
