"""The broker, in the hands of a daemon that was taken over, and asked by odd names."""

import os
import socket
import struct

from outside import asking
from outside.case import attack
from outside.daemon import http, until
from outside.host import four
from outside.namespaces import Namespace


def taken_over(stage):
    broker = asking.Broker(stage.daemon)
    stage.cleanup(broker.close)
    return broker


def refused(stage, what, answer):
    answer.close()
    stage.check(not answer.done, f"{what}: {answer}")


def given(number):
    """An optional number, as a broker's records have it."""
    return 1 << 32 | number


@attack(needs=("root",), most=True)
def broker_calls_services(stage):
    """A daemon that was taken over has its broker call root's services beside and below its ports' sockets, and make sockets there."""
    run = stage.folder()
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
            refused(stage, f"a call to {path}", broker.ask(asking.CALL, path))
        for path in (f"{run}/nscd", f"{run}/svc/nscd", f"{run}/vm1.sock/x", f"{stage.daemon.folder}/control.journals/x"):
            words = (0, given(0o666), given(1), given(1), 16)
            refused(stage, f"a socket at {path}", broker.ask(asking.LISTEN, path, words))
            refused(stage, f"a holder at {path}", broker.ask(asking.HOLD, path + ".hold"))
        stage.check(sorted(os.listdir(run)) == ["docker.sock", "svc", "vm1.sock", "vmm.sock"], f"there is {os.listdir(run)} now")
        # What it is there for.
        answer = broker.ask(asking.CALL, f"{run}/vmm.sock")
        stage.check(answer.done, f"a call to a port's own VMM: {answer}")
        answer.close()


@attack(needs=("root", "tun"), most=True)
def broker_opens_interfaces(stage):
    """A daemon without ports on interfaces that was taken over asks for sockets on the host's, for new ones, and for changes of them."""
    stage.start("vhost-user:DIR/evil.sock")
    broker = taken_over(stage)
    mtu = int(open("/sys/class/net/lo/mtu").read())
    with stage.during():
        for text in ("", "lo"):
            refused(stage, "a packet socket", broker.ask(asking.PACKET, text, (1 << 20,)))
            refused(stage, "an AF_XDP socket", broker.ask(asking.XDP, text, (1 << 20,)))
        refused(stage, "a TAP", broker.ask(asking.TAP, "scstolen", (1, 0)))
        refused(stage, "a queue of an interface", broker.ask(asking.TAP, "lo", (0, 0)))
        refused(stage, "an MTU", broker.ask(asking.MTU, "lo", (mtu,)))
        refused(stage, "an interface that comes up", broker.ask(asking.UP, "lo"))


@attack(needs=("root",), most=True)
def broker_in_namespaces(stage):
    """A daemon with a control plane that was taken over has its broker listen, and change interfaces that are not its own, in that namespace and in others."""
    space, other = Namespace(stage), Namespace(stage, "other")
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.7.0.1/24"], args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil"), 20, "the interface of its control plane")
    broker, mtu = taken_over(stage), 1280
    name = lambda text: struct.unpack("2Q", text.encode().ljust(16, b"\0"))
    address = struct.unpack("2Q", bytes(reversed(bytes(10) + b"\xff\xff" + four("10.9.9.9"))))
    there = 24 | 1 << 8
    with stage.during():
        for port in (179, 2601, 22):
            refused(stage, f"a listener at port {port}", broker.ask(asking.INSIDE, space.path, (1 << 16 | port,)))
        refused(stage, "an address of lo", broker.ask(asking.ADDRESS_IN, space.path, (*name("lo"), *address, there)))
        refused(stage, "the MTU of lo", broker.ask(asking.MTU_IN, space.path, (*name("lo"), mtu)))
        for path in (other.path, f"/proc/{os.getpid()}/ns/net", "/etc/passwd"):
            refused(stage, "netlink elsewhere", broker.ask(asking.INSIDE, path, (0,)))
            refused(stage, "a TAP elsewhere", broker.ask(asking.TAP_IN, path, (*name("evil"), 0, 1500, 0)))
        # It is the right request: where the TAP is its own, it is done.
        answer = broker.ask(asking.ADDRESS_IN, space.path, (*name("evil"), *address, there))
        answer.close()
        stage.check(answer.done, f"an address of its own interface: {answer}")


@attack(needs=("root",), most=True)
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
