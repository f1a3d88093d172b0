"""What VMMs' users and other local users do to the daemon's start, and to its log."""

import os
import signal
import socket
import subprocess
import sys
import time

from outside import vhost
from outside.case import attack
from outside.daemon import until
from outside.flow import pause

from .fourth import own_folder
from .second import connect, vale

NOBODY = 65534


def as_user(stage, text, *args):
    """A program of an unrelated user; it has said a word when this returns."""
    begin = f"import os, socket, sys, time\nos.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    process = subprocess.Popen([sys.executable, "-c", begin + text + "\nprint(flush=True); time.sleep(120)", *args], stdout=subprocess.PIPE, text=True)
    stage.cleanup(process.wait)
    stage.cleanup(process.kill)
    until(process.stdout.readline, 20, "a word of the user's program")
    return process


@attack("fifth", needs=("root",))
def taken_names(stage):
    """VMMs' users put a file, a folder, a link and a listener of their own where the daemon wants to make its sockets when it starts."""
    folder = own_folder(stage)
    os.chown(folder, NOBODY, NOBODY)
    put = {"file": "open(p, 'w')", "folder": "os.mkdir(p)", "link": "os.symlink('/etc/passwd', p)", "listener": "s = socket.socket(socket.AF_UNIX); s.bind(p); s.listen(1)"}
    users = {}
    for name, text in put.items():
        users[name] = as_user(stage, "p = sys.argv[1]\n" + text, f"{folder}/{name}.sock")
    kinds = {"file": "e1000", "link": "ring"}
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{name}={kinds.get(name, 'vhost-user')}:{folder}/{name}.sock,switch=evil" for name in put])
    with stage.during():
        for name in put:
            state = stage.daemon.port(name)["state"]
            stage.check(state["peer"] == "stopped" and name in state["detail"], f"port {name} is {state['peer']}: {state['detail']!r}")
        # An operator's other requests, and a reload, are as they were.
        stage.daemon.ask("POST", "/v1/ports", {"name": "more", "kind": "vhost-user", "where": stage.at("more.sock"), "switch": "evil"})
        stage.daemon.ask("DELETE", "/v1/ports/more")
        stage.daemon.process.send_signal(signal.SIGHUP)
        for name, user in users.items():
            user.kill()
            path = f"{folder}/{name}.sock"
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        # What stood in the way has gone.
        for name in put:
            until(lambda: stage.daemon.port(name)["state"]["peer"] != "stopped", 10, f"port {name} has started")
        guest = vhost.Guest(f"{folder}/folder.sock")
        guest.front.close()
        guest.close()
    for name in put:
        stage.daemon.ask("DELETE", f"/v1/ports/{name}")


@attack("fifth", needs=("root",))
def log_of_many_names(stage):
    """A netmap user has ports made by ever new names: each name has lines of its own in the log."""
    stage.start("vhost-user:DIR/evil.sock")
    lines = stage.daemon.lines
    with stage.during():
        before, rounds, end = len(lines), 0, time.monotonic() + stage.seconds
        while time.monotonic() < end:
            k = connect(stage.at("ring/.netmap"))
            vale(k, 1, f"valen{rounds}:c", slots=2, rings=1)
            k.close()
            rounds += 1
        pause(0.5)
        stage.notes["lines, rounds"] = len(lines) - before, rounds
        stage.check(rounds < 40 or len(lines) - before <= 80, f"{len(lines) - before} lines of {rounds} rounds in {stage.seconds:.0f} s")
