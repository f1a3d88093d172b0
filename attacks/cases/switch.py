"""Guests beside guests on one switch: spoofed and forged addresses, and floods."""

import struct
import time

from outside import vhost
from outside.case import attack
from outside.daemon import until
from outside.flow import Neighbours, pause
from outside.vhost import Guest

BROADCAST = "ff:ff:ff:ff:ff:ff"
EVIL = "02:00:00:00:ee:01"
A, B = "02:00:00:00:aa:01", "02:00:00:00:aa:02"
KIND = 0x9999
VICTIM, THIEF, SENDER = "02:00:00:00:aa:11", "02:00:00:00:ee:01", "02:00:00:00:bb:05"


def spoof(stage, guest, victim, count=50, rate=20.0):
    """So many frames with the victim's address as source, so many a second."""
    for i in range(count):
        guest.send(vhost.frame(BROADCAST if i % 2 else EVIL, victim))
        pause(1 / rate)


@attack(most=True)
def mac_spoofing_silent(stage):
    """50 frames with a neighbour's address, 20 a second; no `mac=` anywhere, and the neighbour only receives."""
    stage.start("vhost-user:DIR/evil.sock", beside=True)
    # None goes astray: what is lost is counted at the end, whatever the machine does meanwhile.
    stage.lossless = True
    with stage.during():
        guest = Guest(stage.at("evil.sock"), receive=64)
        stage.cleanup(guest.close)
        spoof(stage, guest, B)
    guest.front.close()


@attack()
def forged_sources(stage):
    """Forged sources fill the switch's table before honest neighbours come; their frames must not be flooded to the attacker."""
    ports = [f"{p}=vhost-user:DIR/{p}.sock,switch=n" for p in "abcd"]
    stage.start("vhost-user:DIR/evil.sock", beside=True, neighbours=False, ports=ports)
    flood = stage.helper("flood", stage.at("evil.sock"), 4, "--sources", 200_000, "--to", EVIL, "--rate", 100_000)
    until(lambda: stage.daemon.port("evil")["counters"]["in_frames"] > 50_000, 10, "50,000 forged frames")
    stage.neighbours = Neighbours(stage.daemon, stage.cpus, both=True)
    stage.cleanup(stage.neighbours.kill)
    stage.used_before = stage.daemon.usage()
    stage.measure("during", 1)
    a = stage.daemon.port("a")["counters"]
    stage.notes["flooded"] = round(a["made"] / max(a["in_frames"], 1), 4)
    stage.check(a["made"] <= 0.05 * a["in_frames"] + 100, f"{a['made']} copies of a neighbour's {a['in_frames']} frames went to others")
    stage.progress("under forged sources")
    flood.end()


@attack()
def multicast_flood(stage):
    """Multicast frames from ever new sources, as fast as the attacker can."""
    stage.start("vhost-user:DIR/evil.sock", beside=True)
    with stage.during():
        stage.helper("flood", stage.at("evil.sock"), stage.seconds, "--to", "01:00:5e:00:00:05", "--sources", 5000).end()
        answers = stage.neighbours.last()["ping"]["answers"]
        until(lambda: stage.neighbours.last()["ping"]["answers"] > answers, 20, "an answer to a ping")
    # What neighbours' flows have lost stands somewhere as a named drop.
    drops = sum(sum(p["counters"]["drops"].values()) for p in stage.daemon.ports().values())
    lost = stage.neighbours.last()["flows"][0]["lost"]
    stage.check(lost <= drops, f"{lost} frames are lost, and {drops} drops are named")


def three(stage):
    stage.start(ports=[f"{n}=vhost-user:DIR/{n}.sock,switch=evil" for n in ("v", "e", "s")])
    guests = [vhost.Guest(stage.at(f"{n}.sock"), receive=200) for n in ("v", "e", "s")]
    for guest in guests:
        stage.cleanup(guest.close)
    return guests


class Receiver:
    """A guest that counts the frames which are for an address."""

    def __init__(self, guest, mac):
        self.guest, self.mac, self.got, self.seen = guest, vhost.mac(mac), 0, guest.rx.used_index()

    def drain(self):
        rx, memory = self.guest.rx, self.guest.memory
        until_now = rx.used_index()
        while self.seen != until_now:
            head = struct.unpack_from("<I", memory, rx.used + 4 + 8 * (self.seen % rx.size))[0] % rx.size
            at, = struct.unpack_from("<Q", memory, rx.desc + 16 * head)
            frame = bytes(memory[at + 12:at + 26])
            self.got += frame[:6] == self.mac and frame[12:14] == KIND.to_bytes(2, "big")
            rx.offer(head)
            self.seen = self.seen + 1 & 0xFFFF


def contest(v, e, s, seconds, victim=True):
    """Victim and thief send from one address by turns, a third one to it: frames sent, and what each of the two got of them."""
    receivers = [Receiver(g, VICTIM) for g in (v, e)]
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if victim:
            v.send(vhost.frame(SENDER, VICTIM, kind=0x8888))
        time.sleep(0.004)
        e.send(vhost.frame(THIEF, VICTIM, kind=0x7777))
        time.sleep(0.004)
        s.send(vhost.frame(VICTIM, SENDER, kind=KIND))
        sent += 1
        for receiver in receivers:
            receiver.drain()
    pause(0.1)
    for receiver in receivers:
        receiver.drain()
    return sent, receivers[0].got, receivers[1].got


@attack()
def held_address(stage):
    """A thief that was heard first claims a neighbour's address a hundred times a second, so that it is held there."""
    v, e, s = three(stage)
    with stage.during():
        e.send(vhost.frame(BROADCAST, VICTIM))
        pause(0.05)
        contest(v, e, s, 1)
        # Claims come seldom on a loaded machine: once they come as they should, the address stays where it is.
        for _ in range(5):
            stage.notes["sent, victim got, thief got"] = sent, got, _ = contest(v, e, s, 2)
            if got >= sent * 0.9:
                break
        stage.check(got >= sent * 0.9, f"the owner, which sends all the time, got {got} of {sent} frames for it")
    for guest in (v, e, s):
        guest.front.close()


@attack(most=True)
def colluding_ports(stage):
    """Seven ports forge sources, so that no bucket of the MAC table has two entries of one of them; a neighbour is silent."""
    count = 7
    names = [f"e{i}" for i in range(count)]
    stage.start(ports=[f"{n}=vhost-user:DIR/{n}.sock,switch=evil" for n in (*names, "p", "q", "third")], neighbours=False)
    q, third, p = (vhost.Guest(stage.at(f"{n}.sock"), receive=200) for n in ("q", "third", "p"))
    evil = [vhost.Guest(stage.at(f"{n}.sock"), ring=256) for n in names]
    for guest in (q, third, p, *evil):
        stage.cleanup(guest.close)
    for guest in evil:
        guest.source = 0
        for k in range(256):
            guest.tx.put(k, guest.out + 128 * k, 72)
            guest.memory[guest.out + 128 * k:guest.out + 128 * k + 72] = b"\0" * 12 + vhost.frame(THIEF, THIEF)

    def burst(guest, number):
        if (guest.tx.next - guest.tx.used_index()) & 0xFFFF > 100:
            return
        for _ in range(100):
            k = guest.tx.next % 256
            guest.source += 1
            at = guest.out + 128 * k + 18
            guest.memory[at:at + 6] = b"\x02" + bytes([0x60 + number]) + struct.pack(">I", guest.source)
            struct.pack_into("<H", guest.memory, guest.tx.avail + 4 + 2 * k, k)
            guest.tx.next = guest.tx.next + 1 & 0xFFFF
        guest.tx.index(guest.tx.next)
        guest.tx.ring()

    # Heard once; from now on it only receives.
    q.send(vhost.frame(BROADCAST, "02:00:00:00:bb:02"))
    pause(0.1)
    leak, got = Receiver(third, "02:00:00:00:bb:02"), Receiver(q, "02:00:00:00:bb:02")
    with stage.during():
        end = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < end:
            for number, guest in enumerate(evil):
                burst(guest, number)
            if (p.tx.next - p.tx.used_index()) & 0xFFFF < 100:
                p.send(vhost.frame("02:00:00:00:bb:02", "02:00:00:00:bb:01", kind=KIND))
            leak.drain()
            got.drain()
        stage.notes.update(forged=sum(g.source for g in evil), neighbour=got.got, third=leak.got)
        stage.check(got.got > 0, "the neighbour got nothing")
        stage.check(leak.got <= 10, f"{leak.got} frames for a neighbour that is up were flooded")
    for guest in (q, third, p, *evil):
        guest.front.close()
