"""Frames that change while a port's rules judge them."""

import struct
import time

from outside import vhost
from outside.case import attack
from outside.flow import Beside

EVIL, TO = "02:00:00:00:ee:01", "02:00:00:00:aa:01"
TCP, UDP, ICMPV6, OPTIONS = 6, 17, 58, 60
SSH, HTTP, ECHO, ADVERTISEMENT = 22, 80, 128, 134
# Bytes of Ethernet's and IPv6's header, and of each header of options.
FRONT, EACH = 54, 24
UPPER = FRONT + 2 * EACH


def packet(upper, payload):
    """A frame with an IPv6 packet whose second header of options, and what follows, lie behind the first 64 bytes."""
    options = b"".join(bytes((following, EACH // 8 - 1, 1, EACH - 4)) + bytes(EACH - 4) for following in (OPTIONS, upper))
    body = options + payload
    fixed = struct.pack(">IHBB", 6 << 28, len(body), OPTIONS, 64) + bytes.fromhex("fd00" + "00" * 13 + "01" + "fd00" + "00" * 13 + "02")
    return vhost.mac(TO) + vhost.mac(EVIL) + b"\x86\xdd" + fixed + body


def segment(port):
    return struct.pack(">HHIIBBHHH", 1000, port, 1, 0, 0x50, 0x10, 1000, 0, 0)


# A frame that may pass, the byte of it that changes, and what that is in one that may not.
CHANGES = [
    (packet(TCP, segment(HTTP)), UPPER + 3, SSH),
    (packet(UDP, segment(SSH)), FRONT + EACH, TCP),
    (packet(ICMPV6, bytes((ECHO,)) + bytes(39)), UPPER, ADVERTISEMENT),
    # Whether there is a second header of options, or what looks like one is the payload of an unknown protocol.
    (packet(UDP, segment(HTTP)), FRONT + EACH, TCP),
]


def is_refused(frame):
    """Whether the rules refuse it, and whether it is one of those frames."""
    upper, at = frame[FRONT + EACH], frame[UPPER:]
    port = struct.unpack_from(">H", at, 2)[0]
    return upper == TCP and port == SSH or upper == ICMPV6 and at[0] == ADVERTISEMENT


@attack()
def headers_that_change(stage):
    """A guest rewrites headers behind the first 64 bytes of its frames while the daemon judges and copies them: nothing arrives that its port's rules refuse."""
    stage.start("vhost-user:DIR/evil.sock", ports=["r=vhost-user:DIR/r.sock,switch=evil"])
    stage.daemon.ask("POST", "/v1/acls", {"name": "l", "default": "permit", "rules": [f"deny proto=tcp dport={SSH}"]})
    stage.daemon.ask("PATCH", "/v1/ports/evil", {"acl-in": "l", "ra-guard": "on"})
    receiver = vhost.Guest(stage.at("r.sock"), receive=200)
    evil = vhost.Guest(stage.at("evil.sock"))
    for guest in (receiver, evil):
        stage.cleanup(guest.close)
    slots = 32
    places = [evil.out + 2048 * slot + 12 + CHANGES[slot % len(CHANGES)][1] for slot in range(slots)]
    both = [(CHANGES[slot % len(CHANGES)][0][CHANGES[slot % len(CHANGES)][1]], CHANGES[slot % len(CHANGES)][2]) for slot in range(slots)]
    for slot in range(slots):
        frame = CHANGES[slot % len(CHANGES)][0]
        evil.memory[evil.out + 2048 * slot:evil.out + 2048 * slot + 12 + len(frame)] = bytes(12) + frame
        evil.tx.put(slot, evil.out + 2048 * slot, 12 + len(frame))

    def change():
        for _ in range(200):
            for way in (1, 0):
                for place, values in zip(places, both):
                    evil.memory[place] = values[way]

    got, wrong, seen = [0] * len(CHANGES), 0, receiver.rx.used_index()
    with stage.during(), Beside(change):
        end = time.monotonic() + 3 * stage.seconds
        while time.monotonic() < end:
            if evil.tx.next - evil.tx.used_index() & 0xFFFF == 0:
                evil.tx.offer(*range(slots))
                evil.tx.ring()
            while seen != receiver.rx.used_index():
                head = struct.unpack_from("<I", receiver.memory, receiver.rx.used + 4 + 8 * (seen % receiver.rx.size))[0] % receiver.rx.size
                at, = struct.unpack_from("<Q", receiver.memory, receiver.rx.desc + 16 * head)
                frame = bytes(receiver.memory[at + 12:at + 12 + len(CHANGES[0][0])])
                if frame[:6] == vhost.mac(TO):
                    wrong += is_refused(frame)
                    got[0] += 1
                receiver.rx.offer(head)
                seen = seen + 1 & 0xFFFF
            stage.alive()
    drops = {name: count for name, count in stage.daemon.port("evil")["counters"]["drops"].items() if count}
    stage.notes.update(arrived=got[0], wrong=wrong, drops=drops)
    stage.check(wrong == 0, f"{wrong} frames arrived that the rules refuse")
    stage.check(got[0] > 100 and drops.get("acl", 0) > 100 and drops.get("ra_guard", 0) > 10, "too few passed, or were dropped: nothing was tried")
    for guest in (receiver, evil):
        guest.front.close()
