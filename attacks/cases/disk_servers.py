"""Disks whose file's server (FUSE) does not answer."""

import os
import threading
import time

from outside import disk, fuse, vfio
from outside.case import attack
from outside.daemon import http, openers, until


def silent(stage):
    """A file whose server answers nothing more."""
    server = fuse.Stalled(opened=False)  # no process that the runner starts has to close it
    stage.cleanup(server.close)
    return server


def add(stage, name, seconds=10, **more):
    """The status and the answer of a port's being added."""
    for kind, key in (("s", "where"), ("d", "file")):
        if key in more:
            stage.daemon.name(kind, more[key])
    return http(stage.daemon.control, "POST", "/v1/ports", {"name": name, "where": stage.at(f"{name}.sock"), **more}, timeout=seconds)


@attack(needs=("root", "fuse"))
def silent_disk(stage):
    """A disk is added whose file's server does not answer open(2): its request fails by name, and all others go on meanwhile."""
    server = silent(stage)
    image = disk.image(os.path.join(stage.folder(), "image"))
    stage.start(ports=["e=e1000:DIR/e.sock,switch=evil"])
    answers, beside = [], 0

    def bad():
        answers.append(add(stage, "bad", 120, kind="blk", file=server.path))

    with stage.during():
        waiting = threading.Thread(target=bad, daemon=True)
        waiting.start()
        time.sleep(0.5)  # until it waits; where it does not yet, the next ones are the harder
        for do in (stage.daemon.ports, lambda: stage.check(add(stage, "good", kind="blk", file=image)[0] == 200, "another disk is refused"),
                   lambda: vfio.Nic(stage.at("e.sock")).close(), lambda: add(stage, "more", kind="vhost-user", switch="evil")):
            do()
            beside += not answers
        # The disk is given up after 5 s: who had to wait for it comes behind its answer.
        stage.check(beside >= 2, f"{beside} of 4 requests were answered beside the silent disk's")
        waiting.join(120)
        stage.check(answers and answers[0][0] != 200 and server.path in str(answers[0][1]), f"the silent disk: {answers}")
        # Neither does it help to ask for it again and again.
        for _ in range(0 if stage.problems else 20):
            status, answer = add(stage, "bad", kind="blk", file=server.path)
            stage.check(status != 200, f"a disk that cannot be opened was added: {answer}")
        left = len(openers())
        stage.check(left <= 4, f"{left} processes wait for the silent server")
        server.close()
        until(lambda: not openers(), 10, "an end of the processes that waited")
        stage.check(add(stage, "last", kind="vhost-user", switch="evil")[0] == 200, "the broker is given up")
    for name in ("more", "good", "last"):
        stage.daemon.ask("DELETE", f"/v1/ports/{name}", wanted=None)
    stage.notes.update(beside=beside, left=left, said=str(answers[:1])[-120:])


@attack(needs=("root", "fuse"))
def silent_disk_at_start(stage):
    """The server of a configured disk's file answers nothing when the daemon starts: all other ports are there, and that one says why."""
    server = silent(stage)
    begun = time.monotonic()
    stage.start(ports=[f"bad=blk:DIR/bad.sock,file={server.path}"])
    stage.notes["ready_s"] = round(time.monotonic() - begun, 1)
    with stage.during(3):  # it is tried again each second
        state = stage.daemon.port("bad")["state"]
        stage.check(state["peer"] == "stopped" and server.path in state["detail"], f"the silent disk is {state['peer']}: {state['detail']!r}")
        for _ in range(10):
            stage.daemon.ports()
            time.sleep(0.25)
        stage.check(len(openers()) <= 4, f"{len(openers())} processes wait for the silent server")
        server.close()
    until(lambda: not openers(), 10, "an end of the processes that waited")


@attack(needs=("root", "fuse"))
def set_of_a_silent_disk(stage):
    """A disk's server falls silent, and then the disk is changed so that its file is opened anew: others are served meanwhile, and the disk goes on."""
    server = fuse.Stalled(silent=False, opened=False)
    stage.cleanup(server.close)
    stage.start(ports=[f"evil=blk:DIR/evil.sock,file={server.path}"])
    guest = disk.connect(stage)
    server.silent.value = 1
    answers, beside = [], 0

    def change():
        answers.append(http(stage.daemon.control, "PATCH", "/v1/ports/evil", {"queues": 2}, timeout=120))

    with stage.during():
        asking = threading.Thread(target=change, daemon=True)
        asking.start()
        while asking.is_alive():
            stage.daemon.ports(timeout=60)
            beside += asking.is_alive()
            time.sleep(0.05)
        stage.notes.update(beside=beside, said=str(answers)[-160:])
        stage.check(beside > 1, f"{beside} requests were answered beside the change, which waits for 5 s")
        stage.check(answers and answers[0][0] != 200 and server.path in str(answers[0][1]), f"the change: {answers}")
        peer = stage.daemon.port("evil")["state"]["peer"]
        stage.check(peer in ("connected", "running"), f"the disk is {peer}")
        stage.check(not guest.front.hung_up(0), "its VMM was hung up on")
    guest.close()
    server.close()
