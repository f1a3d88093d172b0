"""The control socket beside clients that never read, clients that are killed, and threads that never come back."""

import os
import random
import signal
import socket
import threading
import time

from outside import inject, vfio
from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import pause
from outside.inject import ptrace, threads
from outside.ring import ask
from outside.vhost import Guest


def slow(stage, path, say, what, count=1000):
    """So many connections of one user that say next to nothing; a real client has to get in meanwhile."""
    stage.descriptors(count + 200)
    socks, misses = [], 0
    stage.cleanup(lambda: [s.close() for s in socks])
    for _ in range(count):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(0.05)
        try:
            s.connect(path)
            s.send(say)
        except OSError:  # the backlog of the socket is full
            s.close()
            misses += 1
            if misses > 60:
                break
            pause(0.01)
            continue
        socks.append(s)
        misses = 0
    stage.notes["connected"] = len(socks)
    stage.check(os.path.exists(path), f"{path} is not there: nothing was tried")

    def open_still():
        return stage.daemon.usage()["fds"] - stage.used_before["fds"]

    stage.control(f"beside {len(socks)} slow connections", 15)
    try:
        until(lambda: open_still() <= 300, 25, "few")
    except Failure:
        raise Failure(f"{open_still()} slow connections of {what} are open after 25 s") from None
    stage.notes["open"] = open_still()
    for s in socks:
        s.close()


@attack()
def slow_captures(stage):
    """1,000 captures that are never read."""
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during():
        request = b"GET /v1/capture/evil HTTP/1.1\r\nhost: x\r\n\r\n"
        slow(stage, stage.daemon.control, request, "captures")


@attack()
def kill_clients(stage):
    """Clients of the control socket, captures and the sockets of ring ports are killed at any instant."""
    import os
    import signal
    import subprocess
    stage.start(ports=["r=ring:DIR/r.sock,switch=evil"])
    chance = random.Random(3)
    env = {**os.environ, "SIDECORE_SOCKET": stage.daemon.control}
    binary = stage.options.binary
    with stage.during():
        for i in range(40 if stage.full else 12):
            what = (["capture", "a"], ["show", "ports"], ["pkt-gen", "-i", stage.at("r.sock"), "-f", "tx"])[i % 3]
            client = subprocess.Popen([binary, *what], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            pause(chance.uniform(0.0, 0.15))
            client.send_signal(signal.SIGKILL)
            client.wait()
        stage.progress("behind killed clients")


class Stuck:
    """A thread of the daemon that is stopped wherever it is, for as long as this is open: nothing in the daemon can wake it."""

    def __init__(self, daemon, start):
        self.tid = until(lambda: next((tid for tid, name in threads(daemon.pid) if name.startswith(start)), None), 10, f"a thread {start}")
        ptrace(inject.SEIZE, self.tid)
        ptrace(inject.INTERRUPT, self.tid)
        os.waitpid(self.tid, inject.WALL)

    def reap(self):
        """Takes note of its end, which its process waits for as long as it is watched."""
        try:
            os.waitpid(self.tid, inject.WALL | os.WNOHANG)
        except ChildProcessError:
            pass

    def release(self):
        try:
            ptrace(inject.DETACH, self.tid)
        except OSError:
            self.reap()


@attack(needs=("root",))
def threads_that_hang(stage):
    """Conversations stop wherever they are, as in a call that no signal ends: a request that deletes their port, others beside it, and the daemon's end wait for none of them."""
    daemon = stage.start("vhost-user:DIR/evil.sock", ports=["card=e1000:DIR/card.sock,switch=evil", "r=ring:DIR/r.sock,switch=evil",
                                                            "more=vhost-user:DIR/more.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"))
    stage.cleanup(guest.close)
    nic = vfio.Nic(stage.at("card.sock"))
    stage.cleanup(nic.close)
    client, _, _ = ask(stage, stage.at("r.sock"), 1)
    stuck = {}
    stage.cleanup(lambda: [each.release() for each in stuck.values()])
    said = {}
    with stage.during():
        for name, start in (("evil", "vu-evil"), ("card", "vfu-card"), ("r", "ring-r")):
            stuck[name] = Stuck(daemon, start)

            def delete():
                try:
                    said[name] = http(daemon.control, "DELETE", f"/v1/ports/{name}", timeout=120)[0]
                except OSError as e:
                    said[name] = str(e)

            begun = time.monotonic()
            thread = threading.Thread(target=delete)
            thread.start()
            answers = 0
            while thread.is_alive() and time.monotonic() < begun + 120:
                daemon.ask("GET", "/v1/daemon")
                answers += name not in said
            thread.join()
            stage.notes[name] = [said[name], answers, round(time.monotonic() - begun, 1)]
            stage.check(isinstance(said[name], int), f"DELETE of {name} whose thread hangs: {said[name]}")
            stage.check(answers > 0, f"no other request was answered while {name} was deleted")
            stage.check(name not in daemon.ports(), f"{name} is still there")
        # What is deleted comes back once its thread goes on.
        stuck.pop("evil").release()
        until(lambda: stage.alive() or not any(name.startswith("vu-evil") for _, name in threads(daemon.pid)), 20, "the end of a thread that goes on")
        stage.progress("beside threads that hang")
        stuck["more"] = Stuck(daemon, "vu-more")
    stage.neighbours.end()
    # Not even the I/O core comes back.
    stuck["core"] = Stuck(daemon, "io-core-")
    begun = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    while daemon.process.poll() is None and time.monotonic() < begun + 120:
        for each in stuck.values():
            each.reap()
        time.sleep(0.02)
    took = time.monotonic() - begun
    stage.notes["end_s"] = round(took, 1)
    stage.check(daemon.process.poll() == 1, f"SIGTERM beside threads that hang: {daemon.ending()}")
    line = daemon.log("without waiting for")
    stage.check(line and "vu-more" in line[-1], f"what it did not wait for is not named: {line}")
    stage.check(not stage.neighbours.last()["flows"][0]["lost"], "neighbours' frames are lost")
    stage.judge(took < 15, f"SIGTERM took {took:.1f} s")
    stage.spared.add("end")
