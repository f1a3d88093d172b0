"""What a later attack found at the broker, by programs that had taken the daemon over, and by VMMs' users beside it."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from outside import asking
from outside.case import attack
from outside.daemon import http
from outside.flow import pause

NOBODY = 65534
NEWNET = 0x40000000


def in_new_network():
    if asking.LIBC.unshare(NEWNET):
        raise OSError("unshare")


def own_folder(stage, mode=0o755):
    """A folder outside the daemon's own."""
    folder = tempfile.mkdtemp(prefix="sidecore-attack-")
    os.chmod(folder, mode)
    stage.cleanup(shutil.rmtree, folder, True)
    return folder


def taken_over(stage):
    broker = asking.Broker(stage.daemon)
    stage.cleanup(broker.close)
    return broker


def refused(stage, what, answer):
    answer.close()
    stage.check(not answer.done, f"{what}: {answer}")


@attack("fourth", needs=("root",))
def broker_calls_services(stage):
    """A daemon that was taken over has its broker call root's services beside and below its ports' sockets, and make sockets there."""
    run = own_folder(stage)
    os.mkdir(f"{run}/svc", 0o700)
    services = []
    for path in (f"{run}/docker.sock", f"{run}/svc/docker.sock"):
        service = socket.socket(socket.AF_UNIX)
        stage.cleanup(service.close)
        service.bind(path)
        os.chmod(path, 0o600)
        service.listen(4)
        services.append(path)
    vmm = socket.socket(socket.AF_UNIX)
    stage.cleanup(vmm.close)
    vmm.bind(f"{run}/vmm.sock")
    vmm.listen(4)
    stage.start("vhost-user:DIR/evil.sock", ports=[f"vm1=vhost-user:{run}/vm1.sock,switch=evil",
                                                  f"vm2=vhost-user:{run}/vmm.sock,switch=evil,role=client"])
    broker = taken_over(stage)
    with stage.during():
        for path in (*services, f"{run}/vm1.sock", stage.daemon.control):
            refused(stage, f"a call to {path}", broker.ask("Call", path=path))
        for path in (f"{run}/nscd", f"{run}/svc/nscd", f"{run}/vm1.sock/x", f"{stage.daemon.folder}/control.journals/x"):
            answer = broker.ask("Listen", path=path, seqpacket=False, mode=0o666, owner=(1, 1), backlog=16)
            refused(stage, f"a socket at {path}", answer)
            refused(stage, f"a holder at {path}", broker.ask("Hold", path=path + ".hold"))
        stage.check(sorted(os.listdir(run)) == ["docker.sock", "svc", "vm1.sock", "vmm.sock"], f"there is {os.listdir(run)} now")
        # What it is there for.
        answer = broker.ask("Call", path=f"{run}/vmm.sock")
        stage.check(answer.done, f"a call to a port's own VMM: {answer}")
        answer.close()


@attack("fourth", needs=("root", "tun"))
def broker_opens_interfaces(stage):
    """A daemon without ports on interfaces that was taken over asks for sockets on the host's, for new ones, and for changes of them."""
    stage.start("vhost-user:DIR/evil.sock")
    broker = taken_over(stage)
    mtu = int(open("/sys/class/net/lo/mtu").read())
    with stage.during():
        for text in ("", "lo"):
            refused(stage, "a packet socket", broker.ask("Packet", name=text, buffer=1 << 20))
            refused(stage, "an AF_XDP socket", broker.ask("Xdp", name=text, buffer=1 << 20))
        refused(stage, "a TAP", broker.ask("Tap", name="scstolen", create=True, multi=False))
        refused(stage, "a queue of an interface", broker.ask("Tap", name="lo", create=False, multi=False))
        refused(stage, "an MTU", broker.ask("Mtu", name="lo", mtu=mtu))
        refused(stage, "an interface that comes up", broker.ask("Up", name="lo"))


@attack("fourth", needs=("root",))
def odd_names(stage):
    """Ports are asked for by names that a broker has no request for: the daemon must not give its broker up."""
    stage.start("vhost-user:DIR/evil.sock")
    os.mkdir(stage.at("x"))
    odd = [("vhost-user", f"{stage.daemon.folder}/x/../dots.sock", {}), ("e1000", f"{stage.daemon.folder}/x/../e.sock", {}),
           ("ring", f"{stage.daemon.folder}/x/../ring.sock", {}), ("tap", ".x", {}), ("vhost-user", f"{stage.daemon.folder}/a\0b.sock", {}),
           ("vhost-user", f"{stage.daemon.folder}/j.sock", {"journal": f"{stage.daemon.folder}/x/../j"})]
    with stage.during():
        for i, (kind, where, more) in enumerate(odd):
            for known in (False, True):
                if known and "\0" not in where and kind != "tap":
                    stage.daemon.name("s", where)
                    stage.daemon.name("j", more.get("journal", where))
                status, answer = http(stage.daemon.control, "POST", "/v1/ports",
                                      {"name": f"odd{i}", "kind": kind, "where": where, "switch": "evil", **more})
                stage.check("broker is gone" not in str(answer), f"{kind}:{where!r}: {answer}")
                if status == 200:
                    stage.daemon.ask("DELETE", f"/v1/ports/odd{i}")
            broker = stage.daemon.ask("GET", "/v1/daemon")["broker"].get("pid")
            stage.check(broker is not None, f"after {kind}:{where!r} the broker is gone")
        stage.daemon.ask("POST", "/v1/ports", {"name": "good", "kind": "vhost-user", "where": stage.at("good.sock"), "switch": "evil"})
        stage.daemon.ask("DELETE", "/v1/ports/good")


@attack("fourth", needs=("root",))
def squatted_holders(stage):
    """A VMM's user has a full queue listen where its e1000's holder is looked for: the daemon's start, and others, must not wait."""
    folder = own_folder(stage)
    os.chown(folder, NOBODY, NOBODY)
    names = ("e1", "e2", "e3")
    for name in names:
        squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stage.cleanup(squatter.close)
        squatter.bind(f"{folder}/{name}.sock.hold")
        os.chown(f"{folder}/{name}.sock.hold", NOBODY, NOBODY)
        os.chmod(f"{folder}/{name}.sock.hold", 0o777)
        squatter.listen(0)
        for _ in range(4):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stage.cleanup(client.close)
            client.setblocking(False)
            try:
                client.connect(f"{folder}/{name}.sock.hold")
            except OSError:
                break
    start = time.monotonic()
    stage.start("vhost-user:DIR/evil.sock", ports=[f"{n}=e1000:{folder}/{n}.sock,switch=evil" for n in names[:2]])
    took = time.monotonic() - start
    stage.notes["start_s"] = round(took, 2)
    stage.check(took < 8, f"the start took {took:.1f} s")
    with stage.during():
        stage.daemon.name("s", f"{folder}/e3.sock")
        start = time.monotonic()
        http(stage.daemon.control, "POST", "/v1/ports", {"name": "e3", "kind": "e1000", "where": f"{folder}/e3.sock", "switch": "evil"}, timeout=30)
        took = time.monotonic() - start
        stage.notes["add_s"] = round(took, 2)
        # The patience with a holder is 10 s.
        stage.check(took < 8, f"adding a port took {took:.1f} s")
        http(stage.daemon.control, "DELETE", "/v1/ports/e3", timeout=30)


@attack("fourth", needs=("root",))
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


@attack("fourth", needs=("root", "tun"))
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
