"""Inputs one after the other, each to a fresh vhost-user connection."""

import time

from . import vhost
from .daemon import Failure
from .vhost import USER, Guest, Refused

EVIL = "02:00:00:00:ee:01"
TO = "02:00:00:00:ee:02"
BROADCAST = "ff:ff:ff:ff:ff:ff"


def each(stage, inputs, **more):
    """Each input to a fresh connection; the daemon and its neighbours are looked at behind every one."""
    names = [f"evil{i}" for i in range(6)]  # a port that was stopped may hold the next VMM off for a while
    ports = [f"{name}=vhost-user:DIR/{name}.sock,switch=evil" for name in names]
    stage.start(ports=["other=vhost-user:DIR/other.sock,switch=evil"] + ports, **more)
    other = Guest(stage.at("other.sock"), receive=128)
    stage.cleanup(other.close)
    stopped, turn = [], 0
    with stage.during():
        for send in inputs:
            name = send.__name__.strip("_").replace("_", " ")
            guest, began = None, time.monotonic()
            try:
                while guest is None:
                    turn += 1
                    try:
                        guest = Guest(stage.at(f"{names[turn % 6]}.sock"), start=False, receive=32, timeout=0.5,
                                      features=vhost.VERSION_1 | vhost.CSUM | vhost.HOST_TSO4 | vhost.INDIRECT)
                    except (Refused, OSError):
                        stage.alive()
                        if time.monotonic() - began > 20:
                            raise Failure("the ports take nobody in any more") from None
                guest.front.sock.settimeout(3)
                send(guest)
                guest.front.sync()
            except (Refused, TimeoutError, OSError):
                stopped.append(name)
            except Failure as failure:
                raise Failure(f"{name}: {failure}") from None
            finally:
                if guest:
                    guest.close()
            try:
                stage.progress(f"behind: {name}")
            except Failure as failure:
                raise Failure(f"{name}: {failure}") from None
            stage.control(f"behind: {name}")
            if time.monotonic() - began > 2:
                stage.notes[name] = f"{time.monotonic() - began:.1f} s"
    stage.notes["stopped"] = len(stopped), len(inputs)
    other.front.close()


def up(guest, regions=None, fds=None):
    """Everything as it should be."""
    guest.front.table(regions or [(0, guest.size, USER, 0)], fds or [guest.fd])
    guest.start(0, guest.rx)
    guest.start(1, guest.tx)


def served(guest, seconds=0.3):
    """A moment for the core to meet what is in the ring."""
    guest.tx.ring()
    end = time.monotonic() + seconds
    while time.monotonic() < end and guest.tx.used_index() != guest.tx.next and not guest.front.hung_up(0.01):
        pass
