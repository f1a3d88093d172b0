"""A routing daemon as a router's control plane hears it: rtnetlink's messages in zebra's FPM (docs/router.md), as it is sent from inside a namespace.

After rtnetlink(7), linux/rtnetlink.h, and FRR's documentation of FPM.
"""

import socket
import struct

UNICAST, MAIN, BGP = 1, 254, 186
NEWROUTE, DELROUTE, NEWNEXTHOP = 24, 25, 104
DST, OIF, GATEWAY, NH_ID = 1, 4, 5, 30
NHA_ID, NHA_GROUP, NHA_OIF, NHA_GATEWAY = 1, 2, 5, 6


def attribute(kind, value):
    return struct.pack("<HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def frame(kind, body, flags=0x505):
    message = struct.pack("<IHHII", 16 + len(body), kind, flags, 1, 0) + body
    return struct.pack(">BBH", 1, 1, 4 + len(message)) + message


def route(prefix, length, link, gateway):
    """A new IPv4 route."""
    fixed = struct.pack("<BBBBBBBBI", socket.AF_INET, length, 0, 0, MAIN, BGP, 0, UNICAST, 0)
    return frame(NEWROUTE, fixed + attribute(DST, prefix) + attribute(OIF, struct.pack("<I", link)) + attribute(GATEWAY, gateway))


def route_by(prefix, length, object):
    """A new IPv4 route by the next hop, or the group of them, of this number."""
    fixed = struct.pack("<BBBBBBBBI", socket.AF_INET, length, 0, 0, MAIN, BGP, 0, UNICAST, 0)
    return frame(NEWROUTE, fixed + attribute(DST, prefix) + attribute(NH_ID, struct.pack("<I", object)))


def remove_route(prefix, length):
    """There is no such IPv4 route any more."""
    return frame(DELROUTE, struct.pack("<BBBBBBBBI", socket.AF_INET, length, 0, 0, MAIN, BGP, 0, UNICAST, 0) + attribute(DST, prefix))


def next_hop(number, link, gateway):
    """A new next hop."""
    fixed = struct.pack("<BBBBI", socket.AF_INET, 0, BGP, 0, 0) + attribute(NHA_ID, struct.pack("<I", number))
    return frame(NEWNEXTHOP, fixed + attribute(NHA_OIF, struct.pack("<I", link)) + attribute(NHA_GATEWAY, gateway))


def group(number, members):
    """A new group of next hops."""
    fixed = struct.pack("<BBBBI", 0, 0, BGP, 0, 0) + attribute(NHA_ID, struct.pack("<I", number))
    return frame(NEWNEXTHOP, fixed + attribute(NHA_GROUP, b"".join(struct.pack("<IBBH", member, 0, 0, 0) for member in members)))


def control(stage, name="r"):
    """What the control plane of a router says of itself."""
    return next(r for r in stage.daemon.ask("GET", "/v1/routers")["routers"] if r["name"] == name)["control"]
