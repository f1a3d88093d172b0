"""What a silent server of a disk's file holds up, and what a VMM keeps of the one that comes after it."""

import mmap
import os
import struct
import threading
import time

from outside import disk, fuse, ptnet, vfio, vhost
from outside.case import attack
from outside.daemon import http, until

SECRET = b"FOR-THE-NEXT-VM-ALONE"


def add(stage, name, seconds=10, **more):
    """The status and the answer of a port's being added."""
    for kind, key in (("s", "where"), ("d", "file")):
        if key in more:
            stage.daemon.name(kind, more[key])
    return http(stage.daemon.control, "POST", "/v1/ports", {"name": name, "where": stage.at(f"{name}.sock"), **more}, timeout=seconds)


def silent(stage):
    """A file whose server answers nothing more."""
    server = fuse.Stalled(opened=False)  # no process that the runner starts has to close it
    stage.cleanup(server.close)
    return server


def openers():
    """Processes of the program that open files."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"\0open-disk\0" in open(f"/proc/{entry}/cmdline", "rb").read():
                found.append(int(entry))
        except OSError:
            pass
    return found


@attack("ninth", needs=("root", "fuse"))
def silent_disk(stage):
    """A disk is added whose file's server does not answer open(2): its request fails by name, and all others go on meanwhile."""
    server = silent(stage)
    image = disk.image(os.path.join(disk.folder(stage), "image"))
    stage.start(ports=["e=e1000:DIR/e.sock,switch=evil"])
    answers, took = [], {}

    def bad():
        begun = time.monotonic()
        try:
            answers.append((*add(stage, "bad", 40, kind="blk", file=server.path), time.monotonic() - begun))
        except OSError as e:
            answers.append((0, repr(e), time.monotonic() - begun))

    def timed(what, seconds, do):
        begun = time.monotonic()
        try:
            do()
        except (OSError, vhost.Refused, struct.error) as e:
            stage.check(False, f"{what}: {e!r}")
        took[what] = round(time.monotonic() - begun, 2)
        stage.check(took[what] < seconds, f"{what} took {took[what]} s")

    with stage.during():
        waiting = threading.Thread(target=bad, daemon=True)
        waiting.start()
        time.sleep(0.5)  # until it waits; where it does not yet, the next ones are the harder
        timed("ports", 3, lambda: stage.daemon.ports(timeout=5))
        timed("an e1000's VMM", 3, lambda: vfio.Nic(stage.at("e.sock")).close())
        timed("another port", 3, lambda: add(stage, "more", kind="vhost-user", switch="evil"))
        timed("another disk", 3, lambda: stage.check(add(stage, "good", kind="blk", file=image)[0] == 200, "another disk is refused"))
        waiting.join(20)
        stage.check(answers and answers[0][0] != 200 and server.path in str(answers[0][1]) and answers[0][2] < 15, f"the silent disk: {answers}")
        # Neither does it help to ask for it again and again.
        for _ in range(0 if stage.problems else 20):
            status, answer = add(stage, "bad", kind="blk", file=server.path)
            stage.check(status != 200, f"a disk that cannot be opened was added: {answer}")
        left = len(openers())
        stage.check(left <= 4, f"{left} processes wait for the silent server")
        server.close()
        until(lambda: not openers(), 10, "an end of the processes that waited")
        timed("a port afterwards", 3, lambda: stage.check(add(stage, "last", kind="vhost-user", switch="evil")[0] == 200, "the broker is given up"))
    for name in ("more", "good", "last"):
        stage.daemon.ask("DELETE", f"/v1/ports/{name}", wanted=None)
    stage.notes.update(took=took, left=left, said=str(answers[:1])[-120:])


@attack("ninth", needs=("root", "fuse"))
def silent_disk_at_start(stage):
    """The server of a configured disk's file answers nothing when the daemon starts: all other ports are there, and that one says why."""
    server = silent(stage)
    begun = time.monotonic()
    stage.start(ports=[f"bad=blk:DIR/bad.sock,file={server.path}"])
    stage.notes["ready_s"] = round(time.monotonic() - begun, 1)
    with stage.during(3):  # it is tried again each second
        state = stage.daemon.port("bad")["state"]
        stage.check(state["peer"] == "stopped" and server.path in state["detail"], f"the silent disk is {state['peer']}: {state['detail']!r}")
        begun = time.monotonic()
        for _ in range(10):
            stage.daemon.ports(timeout=15)
            time.sleep(0.25)
        # Each would wait for the file's 5 s.
        stage.check(time.monotonic() - begun < 20, f"ten requests took {time.monotonic() - begun:.1f} s")
        stage.check(len(openers()) <= 4, f"{len(openers())} processes wait for the silent server")
        server.close()
    until(lambda: not openers(), 10, "an end of the processes that waited")


@attack("ninth")
def next_ptnet_memory(stage):
    """A ptnet VMM leaves and keeps its mapping of the port's memory: it must not be that of the next VMM, which receives and sends."""
    stage.start("ptnet:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    with stage.during():
        former = ptnet.Nic(stage.at("evil.sock"))
        kept = mmap.mmap(former.device.fd, former.device.size)
        number = os.fstat(former.device.fd).st_ino
        former.close()
        until(lambda: stage.daemon.port("evil")["state"]["peer"] == "waiting", 30, "the end of the former VMM")
        nic = ptnet.Nic(stage.at("evil.sock"))
        stage.cleanup(nic.close)
        stage.check(os.fstat(nic.device.fd).st_ino != number, "the next VMM has the memory of the former one")
        guest = vhost.Guest(stage.at("other.sock"))
        stage.cleanup(guest.close)
        guest.send(vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:02")[:14] + SECRET.ljust(60, b"\0"))
        until(lambda: stage.daemon.port("evil")["counters"]["out_frames"] >= 1, 10, "a frame for the next VMM")
        stage.check(nic.device.map.find(SECRET) >= 0, "the next VMM has not got its frame")
        stage.check(kept.find(SECRET) < 0, "the former VMM reads a frame of the next one")
        # What the former one writes is not what the next one sends.
        _, _, bufs, size = nic.rings[0]
        at = bufs + size * struct.unpack_from("<I", nic.device.map, nic.rings[0][0] + 256)[0]
        before = nic.device.map[at:at + 4]
        kept[at:at + 4] = b"EVIL"
        stage.check(nic.device.map[at:at + 4] == before, "the former VMM writes into a buffer of the next one")
    kept.close()
    guest.close()
    nic.client.close()
    nic.device.client.close()


@attack("ninth")
def next_e1000_pages(stage):
    """An e1000's VMM leaves and keeps its mapping of the page of tails: the next VMM's is another one."""
    stage.start("e1000:DIR/evil.sock")

    def pages(client):
        client.send(vfio.GET_REGION_INFO, struct.pack("<IIIIQQ", 256, 0, 0, 0, 0, 0))
        _, fds = client.with_fds()
        return fds[0]

    with stage.during():
        former = vfio.Nic(stage.at("evil.sock"))
        file = pages(former.client)
        stage.cleanup(os.close, file)
        former.close()
        until(lambda: stage.daemon.port("evil")["state"]["peer"] == "waiting", 30, "the end of the former VMM")
        nic = vfio.Nic(stage.at("evil.sock"))
        own = pages(nic.client)
        stage.check(os.fstat(file).st_ino != os.fstat(own).st_ino, "the next VMM has the pages of the former one")
        before = stage.daemon.port("evil")["counters"]["in_frames"]
        nic.send(vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:03"))
        until(lambda: stage.daemon.port("evil")["counters"]["in_frames"] > before, 10, "a frame of the next VMM")
        os.close(own)
        nic.close()
