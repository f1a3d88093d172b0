"""What VMMs and clients do as fast as they can: messages, registers, connections, lines in the log."""

import os
import struct
import time

from outside import vfio, vhost
from outside.case import attack
from outside.daemon import holders
from outside.flow import pause
from outside.ring import connect, ring_answer, ring_ask
from outside.vhost import Guest, Refused

BROADCAST = "ff:ff:ff:ff:ff:ff"
FRAME = vhost.frame(BROADCAST, "02:00:00:00:ee:01")


@attack()
def table_storm(stage):
    """A VMM replaces its memory table, and turns its ring off and on, as fast as it can under its own traffic: what I/O cores notice of it is bounded."""
    stage.start("vhost-user:DIR/evil.sock")
    start = time.monotonic()
    guest = Guest(stage.at("evil.sock"))
    stage.cleanup(guest.close)
    with stage.during():
        end, count = time.monotonic() + stage.seconds, 0
        try:
            while time.monotonic() < end:
                guest.send(vhost.frame(BROADCAST, "02:00:00:00:ee:01"))
                guest.front.table([(0, guest.size, vhost.USER, 0)], [guest.fd])
                for value in (0, 1):
                    guest.front.state(vhost.SET_VRING_ENABLE, 1, value)
                count += 1
                if count % 16 == 0:
                    guest.front.sync()
        except vhost.Refused:
            stage.notes["refused"] = True
        stage.notes["tables"] = count
        stage.budget("evil", start)
    guest.front.close()


@attack()
def map_storm(stage):
    """A VMM maps and unmaps the memory under its running e1000 as fast as it can."""
    stage.start("e1000:DIR/evil.sock")
    count = 0
    with stage.during():
        start = time.monotonic()
        nic = vfio.Nic(stage.at("evil.sock"))
        stage.cleanup(nic.close)
        end = time.monotonic() + stage.seconds
        try:
            while time.monotonic() < end:
                nic.send(FRAME)
                nic.client.unmap(0, nic.size)
                nic.client.map(0, nic.size, nic.fd)
                nic.client.write(vfio.TCTL, 2)
                count += 1
        except Refused as e:
            stage.notes["refused"] = str(e)
        stage.notes["maps"] = count
        stage.budget("evil", start)
    nic.client.close()


@attack()
def mailbox_storm(stage):
    """Three e1000 ports write a register each as fast as they can: one turns its transmitter on and off, one resets itself, one sets its interrupt mask."""
    writes = {"evil": (vfio.TCTL, 2, 0), "reset": (vfio.CTRL, 0x0400_0000, 0), "mask": (vfio.IMS, 4)}
    stage.start("e1000:DIR/evil.sock", ports=[f"{name}=e1000:DIR/{name}.sock,switch=evil" for name in ("reset", "mask")])
    with stage.during():
        start = time.monotonic()
        all_of = [stage.helper("storm", stage.at(f"{name}.sock"), stage.seconds, *values) for name, values in writes.items()]
        stage.notes["writes"] = sum(helper.end()["writes"] for helper in all_of)
        for name in writes:
            stage.budget(name, start)


@attack()
def connect_and_close_storm(stage):
    """A vfio-user client connects and closes as often as it can, with and without a word: connections and holders are few."""
    stage.start("e1000:DIR/evil.sock")
    seconds, spoke, silent, most, threads, seen = 2 * stage.seconds, 0, 0, 0, 0, set(holders(stage.daemon))
    threads_before, ticks_before = stage.threads("io-core")
    start = time.monotonic()
    with stage.during():
        while time.monotonic() < start + seconds or not spoke:
            stage.alive()
            for speaks in (False, True):
                try:
                    vfio.Client(stage.at("evil.sock"), timeout=10, version=speaks).close()
                    spoke, silent = spoke + speaks, silent + (not speaks)
                except (Refused, TimeoutError, OSError):
                    pass
            now = holders(stage.daemon)
            seen.update(now)
            most, threads = max(most, len(now)), max(threads, stage.threads("io-core")[0])
    ticks = stage.threads("io-core")[1] - ticks_before
    came = stage.conversation("evil")["connections"]
    took = time.monotonic() - start  # behind the count: what came later is not in it
    stage.notes.update(connections=came, spoke=spoke, silent=silent, holders=most, different=len(seen), ticks=ticks)
    # The pauses are 50, 100, 200, 400, 800 ms, and then a second each.
    stage.check(came <= 6 + took, f"{came} connections in {took:.1f} s: nothing holds them back")
    stage.check(most <= 2, f"{most} holders at a time")
    stage.check(len(seen) <= spoke + 1, f"{len(seen)} holders for {spoke} clients that said a word")
    stage.check(threads <= threads_before + 2, f"{threads} threads instead of {threads_before}")
    hertz = os.sysconf("SC_CLK_TCK")
    stage.judge(ticks <= took * hertz / 2, f"threads that are no I/O cores had {ticks / hertz} s of {took:.1f} s")


@attack()
def log_flood(stage):
    """VMMs and clients do what is logged, as fast as they can."""
    stage.start(ports=["g=e1000:DIR/g.sock,switch=evil", "v=vhost-user:DIR/v.sock,switch=evil", "r=ring:DIR/r.sock,switch=evil"])
    lines = stage.daemon.lines

    def rate(name, act):
        before, rounds, start = len(lines), 0, time.monotonic()
        while time.monotonic() < start + stage.seconds:
            act()
            rounds += 1
        pause(0.2)
        came, took = len(lines) - before, time.monotonic() - start
        stage.notes[name] = f"{came} lines of {rounds} rounds"
        stage.check(came <= 100 * took, f"{name}: {came} lines in {took:.1f} s")

    with stage.during():
        v = vhost.Guest(stage.at("v.sock"), start=False)
        v.front.table([(0, v.size, vhost.USER, 0)], [v.fd])
        v.start(1, v.tx)
        at = [0]

        def addresses():
            for _ in range(32):
                at[0] ^= 4096
                v.front.send(vhost.SET_VRING_ADDR, struct.pack("<IIQQQQ", 1, 0, 0x1000 + at[0], 0x2000, 0x3000, 0))
            v.front.sync()

        rate("rings that cannot run", addresses)
        v.close()

        def junk():
            k = connect(stage.at("r.sock"), 2)
            k.sendall(b"junk" * 32)
            try:
                k.recv(200)
            except OSError:
                pass
            k.close()

        rate("junk from a ring client", junk)

        def attach():
            k = connect(stage.at("r.sock"), 2)
            k.sendall(ring_ask(1))
            ring_answer(k)
            k.close()

        rate("ring clients that come and go", attach)
        c = vfio.Client(stage.at("g.sock"))

        def refused():
            try:
                c.unmap(0x5000, 0x1000)
            except vhost.Refused:
                pass

        rate("refused vfio-user commands", refused)
        c.close()
