"""Network namespaces: one for a stage, what a program says in it, and what its sockets hear."""

import ctypes
import os
import socket
import struct
import subprocess
import threading

from .vhost import libc

FPM = 2620
NEWNET = 0x4000_0000


def in_new_network():
    if libc.unshare(NEWNET):
        raise OSError("unshare")


def heard(name, at, value):
    """A socket that has the frames of interface `name` whose four bytes from `at` on are `value`: others are not even queued (bpf(4))."""
    code = [(0x20, 0, 0, at), (0x15, 0, 1, struct.unpack(">I", value)[0]), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    frames.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", len(code), ctypes.addressof(program)))  # SO_ATTACH_FILTER
    frames.bind((name, 3))  # ETH_P_ALL
    return frames


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
            if connection.connect_ex(("127.0.0.1", FPM)) == 0:
                return connection
            connection.close()
            return None
        return self.inside(make)

    def listener(self):
        """A listener in the place of the router's control plane's."""
        def make():
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", FPM))
            listener.listen()
            return listener
        subprocess.run(["ip", "-n", self.name, "link", "set", "lo", "up"], check=True)
        return self.inside(make)

    def frames(self, name, at, value):
        """As `heard`, of an interface there."""
        return self.inside(lambda: heard(name, at, value))


def drained(heard, into):
    """Adds what there is to hear."""
    try:
        while got := heard.recv(4096):
            into.append(got)
    except BlockingIOError:
        pass
    return into


def inside(space, *command):
    """What a program says in the namespace."""
    return subprocess.run(["ip", "netns", "exec", space.name, *command], check=True, capture_output=True, text=True).stdout


def obeys(space, **settings):
    """Has the kernel there believe as much as one can."""
    for key, value in settings.items():
        subprocess.run(["ip", "netns", "exec", space.name, "sh", "-c", f"for f in /proc/sys/net/ipv?/conf/*/{key}; do [ ! -e $f ] || echo {value} > $f; done"], check=False)
