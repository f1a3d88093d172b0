"""Guests beside guests on one switch: spoofed and forged addresses, floods, loops, visits that take long."""

import os
import subprocess
import time

from outside import vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import Neighbours, pause
from outside.vhost import Guest

A, B = "02:00:00:00:aa:01", "02:00:00:00:aa:02"
EVIL = "02:00:00:00:ee:01"
BROADCAST = "ff:ff:ff:ff:ff:ff"
NEWNET = 0x4000_0000


def spoof(stage, guest, victim, count=50, rate=20.0):
    """So many frames with the victim's address as source, so many a second."""
    for i in range(count):
        guest.send(vhost.frame(BROADCAST if i % 2 else EVIL, victim))
        pause(1 / rate)


@attack("2.3")
def mac_spoofing_receiver(stage):
    """50 frames with a neighbour's address, 20 a second; the neighbour has a `mac=` and only receives."""
    stage.start("vhost-user:DIR/evil.sock", beside=True, macs=True)
    # None goes astray: what is lost is counted at the end, whatever the machine does meanwhile.
    stage.lossless = True
    with stage.during():
        guest = Guest(stage.at("evil.sock"), receive=64)
        stage.cleanup(guest.close)
        spoof(stage, guest, B)
    guest.front.close()


@attack("2.3")
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


@attack("2.3")
def mac_spoofing_sender(stage):
    """50 frames with a neighbour's address, 20 a second; no `mac=` anywhere, and the neighbour sends, too."""
    stage.start("vhost-user:DIR/evil.sock", beside=True, both=True)
    with stage.during():
        guest = Guest(stage.at("evil.sock"), receive=64)
        stage.cleanup(guest.close)
        spoof(stage, guest, B, 25)
        lost = stage.neighbours.last()["flows"][0]["lost"]
        spoof(stage, guest, B, 25)
        pause(0.3)  # for the window's limit of 200 ms
    last = stage.neighbours.last()["flows"][0]
    stage.check(last["lost"] <= lost, f"after 25 such frames, 25 more still cost {last['lost'] - lost} frames")
    guest.front.close()


@attack("2.3")
def forged_sources(stage):
    """Forged sources fill the switch's table before honest neighbours come; their frames must not be flooded to the attacker."""
    ports = [f"{p}=vhost-user:DIR/{p}.sock,switch=n" for p in "abcd"]
    stage.start("vhost-user:DIR/evil.sock", beside=True, neighbours=False, ports=ports)
    flood = stage.helper("flood", stage.at("evil.sock"), 4, "--sources", 200_000, "--to", EVIL, "--rate", 100_000)
    until(lambda: stage.daemon.port("evil")["counters"]["in_frames"] > 50_000, 10, "50,000 forged frames")
    start = time.monotonic()
    stage.neighbours = Neighbours(stage.daemon, stage.cpus, both=True)
    stage.cleanup(stage.neighbours.kill)
    stage.used_before = stage.daemon.usage()
    stage.measure("during", 1)
    a = stage.daemon.port("a")["counters"]
    stage.notes["flooded"] = round(a["made"] / max(a["in_frames"], 1), 4)
    stage.check(a["made"] <= 0.05 * a["in_frames"] + 100, f"{a['made']} copies of a neighbour's {a['in_frames']} frames went to others")
    stage.progress("under forged sources")
    flood.end()


@attack("2.3")
def mac_limit_lockout(stage):
    """A guest with `mac-limit` falls silent, forged sources take its place in the table, and it wants to send again."""
    stage.start("vhost-user:DIR/evil.sock", beside=True, neighbours=False, ports=["v=vhost-user:DIR/v.sock,switch=n,mac-limit=2"],
                switches=[])
    stage.daemon.ask("PATCH", "/v1/switches/n", {"ageing": 1, "table-size": 64})
    victim = Guest(stage.at("v.sock"))
    stage.cleanup(victim.close)
    sent = 0
    for turn in range(4):
        victim.send(vhost.frame(BROADCAST, "02:00:00:00:bb:01"))
        victim.send(vhost.frame(BROADCAST, "02:00:00:00:bb:02"))
        sent += 2
        until(lambda: stage.daemon.port("v")["counters"]["in_frames"] >= sent, 10, "the victim's frames")
        dropped = stage.daemon.port("v")["counters"]["drops"].get("mac_limit", 0)
        if dropped:
            raise Failure(f"the victim was locked out after {turn} silences: {dropped} frames")
        # Longer than the ageing time: the victim's entries go to the first station that comes.
        stage.helper("flood", stage.at("evil.sock"), 1.6, "--sources", 20_000, "--rate", 50_000).end()
        pause(1.2)  # now those have aged, too, and the victim may be learned again
    victim.front.close()


def flooded(stage, *how):
    stage.start("vhost-user:DIR/evil.sock", beside=True)
    with stage.during():
        flood = stage.helper("flood", stage.at("evil.sock"), stage.seconds, *how)
        flood.end()
        answers = stage.neighbours.last()["ping"]["answers"]
        until(lambda: stage.neighbours.last()["ping"]["answers"] > answers, 20, "an answer to a ping")
    stage.check(stage.phases["during"]["pings"] > 0, "no ping was answered under the flood")
    # What neighbours' flows have lost stands somewhere as a named drop.
    drops = sum(sum(p["counters"]["drops"].values()) for name, p in stage.daemon.ports().items() if name in "abcd" or name == "evil")
    lost = stage.neighbours.last()["flows"][0]["lost"]
    stage.check(lost <= drops, f"{lost} frames are lost, and {drops} drops are named")


@attack("2.4")
def broadcast_flood(stage):
    """Broadcasts as fast as the attacker can."""
    flooded(stage)


@attack("2.4")
def multicast_flood(stage):
    """Multicast frames from ever new sources, as fast as the attacker can."""
    flooded(stage, "--to", "01:00:5e:00:00:05", "--sources", 5000)


@attack("2.4")
def unknown_unicast_flood(stage):
    """Frames for an address that no station has."""
    flooded(stage, "--to", "02:00:00:00:dd:01", "--bytes", 1500)


def in_new_network():
    if vhost.libc.unshare(NEWNET):
        raise OSError("unshare")


@attack("2.4", needs=("root", "tun"))
def tap_and_packet_loop(stage):
    """One interface in two ports: `tap:` beside `packet:`; one broadcast would circle for ever."""
    stage.start(ports=["t=tap:scloop,switch=evil"], before=in_new_network)
    with stage.during():
        status, answer = 0, None
        try:
            from outside.daemon import http
            status, answer = http(stage.daemon.control, "POST", "/v1/ports", {"name": "p", "kind": "packet", "where": "scloop", "switch": "evil"})
        finally:
            stage.notes["status"] = status
        stage.check(status >= 400, "the same interface was accepted in a second port")
        if status < 400:
            stage.daemon.ask("DELETE", "/v1/ports/p")


@attack("2.4", needs=("root", "tun"))
def veth_loop(stage):
    """Both ends of a veth pair are ports of one switch: a broadcast circles, and the daemon has to say so."""
    stage.start("vhost-user:DIR/evil.sock", before=in_new_network)
    inside = ["nsenter", "-t", str(stage.daemon.pid), "-n", "ip"]
    made = subprocess.run(inside + ["link", "add", "scv0", "type", "veth", "peer", "name", "scv1"], capture_output=True, text=True)
    if made.returncode:
        raise Failure(f"no veth: {made.stderr.strip()}")
    for end in ("scv0", "scv1"):
        subprocess.run(inside + ["link", "set", end, "up"], check=True)
    refused = False
    for end in ("scv0", "scv1"):
        from outside.daemon import http
        stage.daemon.name("i", end)
        status, _ = http(stage.daemon.control, "POST", "/v1/ports", {"name": end, "kind": "packet", "where": end, "switch": "evil"})
        refused = refused or status >= 400
    if not refused:
        with stage.during(stage.seconds):
            guest = Guest(stage.at("evil.sock"), receive=64)
            stage.cleanup(guest.close)
            guest.send(vhost.frame(BROADCAST, EVIL))
            try:
                until(lambda: stage.daemon.log("loop") or stage.daemon.log("flap"), 6, "a word about the loop")
            except Failure:
                turns = stage.daemon.port("scv0")["counters"]["in_frames"]
                stage.problems.append(f"nothing is said of a loop in which a broadcast has come back {turns} times")
            guest.front.close()
        for end in ("scv0", "scv1"):
            stage.daemon.ask("DELETE", f"/v1/ports/{end}")


def visits(stage, *how):
    """Frames that take long to serve, to a port that takes them, on a switch of their own."""
    stage.start("vhost-user:DIR/evil.sock", ports=["x=vhost-user:DIR/x.sock,switch=evil", "y=vhost-user:DIR/y.sock,switch=evil"])
    sink = Neighbours(stage.daemon, stage.cpus, flow=None, ping=("x", "y"))
    stage.cleanup(sink.kill)
    with stage.during():
        helper = stage.helper("flood", stage.at("evil.sock"), stage.seconds, "--to", B, "--from", EVIL, *how)
        stage.notes["sent"] = helper.end()["sent"]
    sink.kill()


@attack("2.5")
def visit_of_64k_frames(stage):
    """256 frames of 64 KiB, to be cut into segments of 1,460 bytes."""
    visits(stage, "--bytes", 65000, "--gso", 1460)


@attack("2.5")
def visit_of_1024_segments(stage):
    """256 frames that are cut into a thousand segments each."""
    visits(stage, "--bytes", 65000, "--gso", 64)


@attack("2.5")
def visit_of_many_pieces(stage):
    """Frames of 256 descriptors each, a few bytes a descriptor."""
    visits(stage, "--bytes", 1500, "--pieces", 256, "--ring", 1024)
