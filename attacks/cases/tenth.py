"""What guests do to a router, and to others behind it; and what a daemon that does not run all the time holds against them."""

import os
import signal
import struct
import threading
import time

from outside import disk, fuse, vhost
from outside.case import attack
from outside.daemon import http, until
from outside.flow import pause
from outside.host import IPV4, Host, datagram, ether, four, interfaces, packet, solicitation
from outside.vhost import Guest

from .seventh import A_FEW, undisturbed
from .sixth import HUGE, huge_file


@attack("tenth")
def claimed_neighbours(stage):
    """A guest claims 60,000 addresses of its link at a router, which has room for 8,192 neighbours: those at other ports must be found, and stay."""
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.0.0.1/30", "y=vhost-user:DIR/y.sock,router=r,address=10.0.1.1/24",
                       "z=vhost-user:DIR/z.sock,router=r,address=10.2.0.1/16"], args=("--router", "r"))
    stage.lossless = True
    routers, count = interfaces(stage), 20
    new = [four(f"10.2.200.{1 + n}") for n in range(count)]
    evil = Host(stage, "evil", "02:00:00:00:ee:01")
    y = Host(stage, "y", "02:00:00:00:ee:02", [four("10.0.1.2")])
    z = Host(stage, "z", "02:00:00:00:ee:03", new)
    station, link_local = routers["evil"]
    claimed = 0

    def claim(claims):
        nonlocal claimed
        for _ in range(claims):
            claimed += 1
            source = b"\xfe\x80" + bytes(6) + struct.pack(">Q", 0x1234_5678_0000_0000 + claimed)
            evil.send(solicitation(evil.station, source, link_local, station))
        evil.come()

    def reached(wanted, when):
        """Each of them gets a packet, while claims go on."""
        found = set()

        def all_of_them():
            for to in wanted - found:
                y.send(ether(routers["y"][0], y.station, IPV4, packet(four("10.0.1.2"), to, datagram(b"for you"))))
            claim(100)
            y.come()
            found.update(frame[30:34] for frame in z.come() if frame[42:49] == b"for you")
            return found >= wanted

        try:
            until(all_of_them, 10, "reached")
        except Exception:
            stage.check(False, f"{len(found)} of {len(wanted)} stations at another port are reached {when}")

    with stage.during():
        claim(60_000)
        known = stage.daemon.ask("GET", "/v1/neighbours")["neighbours"]
        stage.notes["places"] = places = sum(n["port"] == "evil" for n in known)
        stage.check(places > 8000, f"{places} places are the attacker's: nothing was tried")
        reached(set(new), "under the attack")
        # Once found they stay: the router asks for none of them again.
        asked = z.asked
        claim(20_000)
        reached(set(new), "afterwards")
        stage.check(z.asked <= asked + count // 4, f"{z.asked - asked} of {count} had lost their places again")
    for host in (evil, y, z):
        host.guest.close()


@attack("tenth", needs=("root",))
def frames_of_untouched_pieces(stage):
    """A frame's first bytes are where they should be, and each of 60 further pieces lies in a huge page that was never touched: to copy, cut or sum it up has the kernel clear them all."""
    first, pieces, count = 8, 60, 6
    size = (first + pieces * count) * HUGE
    stage.start("vhost-user:DIR/evil.sock,mtu=9000", ports=["other=vhost-user:DIR/other.sock,switch=evil,mtu=9000"])
    other = Guest(stage.at("other.sock"), receive=16)  # does not take frames in pieces, nor offloads
    stage.cleanup(other.close)
    fd = huge_file(stage, size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, ring=1024, start=False, features=vhost.VERSION_1 | vhost.CSUM)
    stage.cleanup(guest.close)
    tx, memory = guest.tx, guest.memory
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    page = lambda i: (first + i) * HUGE
    undisturbed(stage)
    renew = lambda: vhost.punch(fd, page(0), pieces * count * HUGE, True)

    def usual():
        renew()
        took = []
        for i in range(pieces):
            start = time.thread_time()
            memory[page(i)]
            took.append(time.thread_time() - start)
        return round(1e6 * sorted(took)[pieces // 2])

    with stage.during():
        each = usual()
        for kind, header in (("plain", bytes(12)), ("checksum", struct.pack("<BBHHHHH", 1, 0, 0, 0, 34, 6, 0))):
            renew()
            data = header + vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01", 100)
            memory[4 * HUGE:4 * HUGE + len(data)] = data
            heads = []
            for n in range(count):
                slot = n * (pieces + 1)
                heads.append(slot)
                tx.put(slot, 4 * HUGE, len(data), vhost.NEXT, slot + 1)
                for i in range(pieces):
                    last = i + 1 == pieces
                    tx.put(slot + 1 + i, page(n * pieces + i), 20, 0 if last else vhost.NEXT, slot + 2 + i)
            tx.offer(*heads)
            tx.ring()
            until(lambda: stage.alive() or tx.used_index() == tx.next & 0xFFFF, 60, "the daemon takes the frames")
        each = max(each, usual())
        slow = stage.daemon.port("evil")["state"]["slow"]
        stage.notes.update(slow=slow, page_us=each)
        # With a bound a visit ends with the page that took it beyond its turn.
        stage.check(slow["longest_us"] <= 2 * A_FEW + 8 * each, f"a visit of {slow['longest_us'] // 1000} ms, where a page takes {each} us")
    guest.front.close()
    other.front.close()


@attack("tenth")
def stopped_daemon(stage):
    """The daemon is stopped and goes on, again and again, in the middle of whatever it does: that is no neighbour's fault."""
    stage.start()
    process = stage.daemon.pid
    with stage.during():
        end = time.monotonic() + max(stage.seconds, 3)
        while time.monotonic() < end:
            os.kill(process, signal.SIGSTOP)
            pause(0.03)  # shorter than after what neighbours give a frame up
            os.kill(process, signal.SIGCONT)
            pause(0.003)
    overrun = {name: stage.daemon.port(name)["state"]["overrun"] for name in "ab"}
    stage.notes["overrun"] = overrun
    stage.check(not any(it["rests"] for it in overrun.values()), f"a neighbour has to rest for it: {overrun}")


@attack("tenth", needs=("root", "fuse"))
def set_of_a_silent_disk(stage):
    """A disk's server falls silent, and then the disk is changed so that its file is opened anew: others are served meanwhile, and the disk goes on."""
    server = fuse.Stalled(silent=False, opened=False)
    stage.cleanup(server.close)
    stage.start(ports=[f"evil=blk:DIR/evil.sock,file={server.path}"])
    guest = disk.connect(stage)
    server.silent.value = 1
    answers, longest = [], 0

    def change():
        answers.append(http(stage.daemon.control, "PATCH", "/v1/ports/evil", {"queues": 2}, timeout=40))

    with stage.during():
        asking = threading.Thread(target=change, daemon=True)
        asking.start()
        while asking.is_alive():
            begun = time.monotonic()
            stage.daemon.ports(timeout=30)
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.05)
        stage.notes.update(longest_s=round(longest, 2), said=str(answers)[-160:])
        # The change is refused after 5 s, and waited 7 s once.
        stage.check(longest < 4.5, f"others waited for {longest:.1f} s")
        stage.check(answers and answers[0][0] != 200 and server.path in str(answers[0][1]), f"the change: {answers}")
        peer = stage.daemon.port("evil")["state"]["peer"]
        stage.check(peer in ("connected", "running"), f"the disk is {peer}")
        stage.check(not guest.front.hung_up(0), "its VMM was hung up on")
    guest.close()
    server.close()
