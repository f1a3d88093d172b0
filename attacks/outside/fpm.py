"""A routing daemon as a router's control plane hears it: rtnetlink's messages in zebra's FPM (docs/router.md), from inside a namespace.

After rtnetlink(7), linux/rtnetlink.h, and FRR's documentation of FPM.
"""

import ctypes
import os
import socket
import struct
import subprocess
import threading

PORT = 2620
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


class Namespace:
    """A network namespace for a stage."""

    def __init__(self, stage, what="router"):
        self.name = f"sidecore-attack-{what}-{os.getpid()}"
        self.path = f"/run/netns/{self.name}"
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        stage.cleanup(lambda: subprocess.run(["ip", "netns", "del", self.name], check=False))

    def link(self, name):
        """The number of the interface `name`; none: it is not there."""
        shown = subprocess.run(["ip", "-n", self.name, "-o", "link"], capture_output=True, text=True, check=True).stdout
        links = (line.split(": ") for line in shown.splitlines())
        return next((int(link[0]) for link in links if link[1].split("@")[0] == name), None)

    def inside(self, make):
        """What `make` makes there: a socket stays in the namespace of the thread that made it. `None`: it could not."""
        made = []

        def enter():
            space = os.open(self.path, os.O_RDONLY)
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(space, 0x40000000) == 0:
                made.append(make())
            os.close(space)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return made[0] if made else None

    def connect(self):
        """A connection to the router's control plane. `None`: it does not listen yet."""
        def make():
            connection = socket.socket()
            if connection.connect_ex(("127.0.0.1", PORT)) == 0:
                return connection
            connection.close()
            return None
        return self.inside(make)

    def listener(self):
        """A listener in the place of the router's control plane's."""
        def make():
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", PORT))
            listener.listen()
            return listener
        subprocess.run(["ip", "-n", self.name, "link", "set", "lo", "up"], check=True)
        return self.inside(make)

    def frames(self, name, station):
        """A socket that has what comes to interface `name` there from `station`, Ethernet and all."""
        # The last four bytes of the source address (bpf(4)): those of others are not even queued.
        code = [(0x20, 0, 0, 8), (0x15, 0, 1, struct.unpack(">I", station[2:])[0]), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))

        def make():
            frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
            frames.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", len(code), ctypes.addressof(program)))  # SO_ATTACH_FILTER
            frames.bind((name, 3))  # ETH_P_ALL
            return frames
        return self.inside(make)
