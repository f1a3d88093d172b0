"""Local users: paths, names, interfaces, and what terminals show."""

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

from outside import asking, vhost
from outside.case import attack
from outside.daemon import Failure, http, until
from outside.flow import pause
from outside.namespaces import in_new_network
from outside.vhost import Guest, Refused, libc

NOBODY = 65534


def foreign_folder(stage):
    """A folder of another user, and a file of root's."""
    folder = stage.at("theirs")
    os.mkdir(folder, 0o755)
    os.chown(folder, NOBODY, NOBODY)
    secret = stage.at("secret")
    with open(secret, "w") as file:
        file.write("root's own: 17 by")
    os.chmod(secret, 0o600)
    return folder, secret


@attack(needs=("root",), most=True)
def symlink_race(stage):
    """While the daemon makes a socket in their folder, a user puts a link to root's file in its place."""
    stage.start()
    folder, secret = foreign_folder(stage)
    target = os.path.join(folder, "evil.sock")

    stage.daemon.name("s", target)
    swapper = stage.helper("swap", target, secret, os.path.join(folder, "spare"), NOBODY)
    before = os.stat(secret)
    rounds = 1000 if stage.full else 250
    made = 0
    with stage.during():
        for i in range(rounds):
            spec = {"name": "evil", "kind": "vhost-user", "where": target, "switch": "evil", "mode": "0666", "owner": "65534:65534"}
            status, _ = http(stage.daemon.control, "POST", "/v1/ports", spec)
            made += status == 200
            now = os.stat(secret)
            if (now.st_mode, now.st_uid, now.st_gid) != (before.st_mode, before.st_uid, before.st_gid):
                raise Failure(f"root's file has mode {now.st_mode & 0o777:o} and owner {now.st_uid} after {i + 1} rounds")
            if status == 200:
                http(stage.daemon.control, "DELETE", "/v1/ports/evil")
    swapper.process.kill()
    stage.notes.update(rounds=rounds, made=made)
    stage.check(os.path.exists(secret) and open(secret).read() == "root's own: 17 by", "root's file has changed")


def tiny_tmpfs(stage, size="1m"):
    """A folder that is a file system of its own, and full of nothing yet."""
    folder = tempfile.mkdtemp(prefix="sidecore-attack-tmpfs-")
    stage.cleanup(os.rmdir, folder)
    if libc.mount(b"attack", folder.encode(), b"tmpfs", 0, f"size={size},mode=755".encode()):
        raise Failure(f"no tmpfs: {os.strerror(ctypes.get_errno())}")
    stage.cleanup(libc.umount2, folder.encode(), 2)
    return folder


def fill(folder):
    """Takes all that is left of it; the file that does."""
    path = os.path.join(folder, "full")
    with open(path, "ab", buffering=0) as file:
        for piece in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(b"x" * piece)
            except OSError:
                pass
    return path


@attack(needs=("root",))
def full_tmpfs_at_add(stage):
    """The runtime folder's file system becomes full, and then ports are added."""
    folder = tiny_tmpfs(stage, "64m")
    stage.start("vhost-user:DIR/evil.sock", folder=folder)
    full = fill(folder)
    with stage.during():
        statuses = []
        for i in range(16):
            try:
                kind = ("vhost-user", "e1000", "ring")[i % 3]
                status, _ = http(stage.daemon.control, "POST", "/v1/ports", {"name": f"x{i}", "kind": kind, "where": f"{folder}/x{i}.sock", "switch": "evil"})
                statuses.append(status)
            except OSError:
                stage.alive()
                raise
        stage.notes["statuses"] = sorted(set(statuses))
        # A guest with packed rings wants its journal.
        try:
            guest = Guest(stage.at("evil.sock"), features=vhost.VERSION_1 | vhost.RING_PACKED)
            stage.cleanup(guest.close)
            guest.front.sync()
            guest.front.close()
        except Refused:
            pass
        stage.progress("with a full file system")
        os.unlink(full)
        for i, status in enumerate(statuses):
            if status == 200:
                stage.daemon.ask("DELETE", f"/v1/ports/x{i}")


@attack(needs=("root",), most=True)
def locked_counters(stage):
    """A user who may read the counters file waits to lock it; the daemon is killed, and has to start again."""
    stage.start("vhost-user:DIR/evil.sock", neighbours=False)
    counters = stage.at("control.counters")
    taker = ("import fcntl, os, sys, time\n"
             f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
             "for path in sys.argv[1:]:\n"
             "    try: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)\n"
             "    except OSError: continue\n"
             "time.sleep(60)\n")
    waiting = [subprocess.Popen([sys.executable, "-c", taker, path]) for path in (counters, counters + ".lock")]
    for process in waiting:
        stage.cleanup(process.kill)
    pause(0.5)
    stage.daemon.process.kill()
    stage.daemon.process.wait()
    pause(0.2)
    started = stage.daemon.start()
    stage.check(started, f"it does not start again: {stage.daemon.ending()}")
    stage.first_pid = stage.daemon.pid
    if not started:
        stage.spared.add("end")


def as_user(stage, text, *args):
    """A program of an unrelated user; it has said a word when this returns."""
    begin = f"import os, socket, sys, time\nos.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    process = subprocess.Popen([sys.executable, "-c", begin + text + "\nprint(flush=True); time.sleep(120)", *args], stdout=subprocess.PIPE, text=True)
    stage.cleanup(process.wait)
    stage.cleanup(process.kill)
    until(process.stdout.readline, 20, "a word of the user's program")
    return process


@attack(needs=("root",), most=True)
def taken_names(stage):
    """VMMs' users put a file, a folder, a link and a listener of their own where the daemon wants to make its sockets when it starts."""
    folder = stage.folder()
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


@attack(needs=("root", "tun"), most=True)
def stolen_tap_queue(stage):
    """A user without any capability attaches a queue of its own to the interface of a TAP port with several queues."""
    stage.start("vhost-user:DIR/evil.sock", ports=["t=tap:scqueues,switch=evil,queues=4"], before=in_new_network)
    # IFF_TAP, IFF_NO_PI, IFF_MULTI_QUEUE, IFF_VNET_HDR; TUNSETIFF
    taker = ("import fcntl, os, struct\n"
             "tun = os.open('/dev/net/tun', os.O_RDWR)\n"
             f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
             "try: fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', b'scqueues', 0x2 | 0x1000 | 0x100 | 0x4000))\n"
             "except PermissionError: raise SystemExit(3)\n")
    with stage.during():
        inside = ["nsenter", "-t", str(stage.daemon.pid), "-n", sys.executable, "-c", taker]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=20)
        stage.check(done.returncode == 3, f"it is attached: {done.returncode} {done.stderr[-200:]}")


def with_an_interface_of_nobodys():
    """A network namespace with a TAP interface for several queues, as `ip tuntap add` without `user` makes it, and its sysfs."""
    in_new_network()
    if asking.LIBC.unshare(0x20000) or asking.LIBC.mount(b"none", b"/", None, 0x44000, None) or asking.LIBC.mount(b"sysfs", b"/sys", b"sysfs", 0, None):
        raise OSError("unshare, mount")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    # IFF_TAP, IFF_NO_PI, IFF_MULTI_QUEUE, IFF_VNET_HDR; TUNSETIFF, TUNSETPERSIST
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"scopen", 0x2 | 0x1000 | 0x100 | 0x4000))
    fcntl.ioctl(tun, 0x400454CB, 1)
    os.close(tun)


@attack(needs=("root", "tun"))
def tap_of_nobodys(stage):
    """A TAP port stands on an interface to which every user may attach a queue: the daemon has to say so."""
    stage.start("vhost-user:DIR/evil.sock", ports=["t=tap:scopen,switch=evil,queues=2"], before=with_an_interface_of_nobodys)
    with stage.during():
        state = stage.daemon.port("t")["state"]
        stage.check("any local user" in (state.get("hint") or ""), f"nothing is said of it: {state.get('hint')!r}")
        stage.check(stage.daemon.log("any local user"), "nothing is logged of it")


@attack(most=True)
def names_of_processes(stage):
    """A VMM's process has a name that a terminal obeys, and one that looks like further lines; the operator runs `sidecore place`."""
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during():
        for name in (b"\x1b[2J\x1b]0;x\x07", b"x\nwrong: none"):
            ready, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    vhost.libc.prctl(15, name, 0, 0, 0)  # PR_SET_NAME
                    front = vhost.FrontEnd(stage.at("evil.sock"))
                    front.hello()
                    front.sync()
                    os.write(told, b"x")
                    time.sleep(30)
                finally:
                    os._exit(0)
            os.close(told)
            stage.cleanup(os.close, ready)
            try:
                stage.check(os.read(ready, 1) == b"x", "the VMM does not connect")
                said = subprocess.run([stage.options.binary, "place", "--socket", stage.daemon.control], capture_output=True, timeout=20)
                text = said.stdout.decode(errors="replace")
                stage.check(f"process {pid}" in text, "the VMM is not found: nothing was tried")
                stage.check(not [c for c in text if ord(c) < 32 and c != "\n"], f"what it prints is obeyed by a terminal: {text[-200:]!r}")
                stage.check("\nwrong: none" not in text, f"a process draws lines of its own: {text[-200:]!r}")
            finally:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            until(lambda: stage.daemon.port("evil")["state"]["peer"] != "connected", 20, "the VMM has left")
