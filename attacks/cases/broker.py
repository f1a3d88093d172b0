"""The broker, in the hands of a daemon that was taken over, and asked by odd names."""

import os
import socket

from outside import asking
from outside.case import attack
from outside.daemon import http, until
from outside.namespaces import Namespace


def taken_over(stage):
    broker = asking.Broker(stage.daemon)
    stage.cleanup(broker.close)
    return broker


def refused(stage, what, answer):
    answer.close()
    stage.check(not answer.done, f"{what}: {answer}")


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


@attack(needs=("root", "tun"), most=True)
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


@attack(needs=("root",), most=True)
def broker_in_namespaces(stage):
    """A daemon with a control plane that was taken over has its broker listen, and change interfaces that are not its own, in that namespace and in others."""
    space, other = Namespace(stage), Namespace(stage, "other")
    stage.start(ports=["evil=vhost-user:DIR/evil.sock,router=r,address=10.7.0.1/24"], args=("--router", f"r,control={space.name}"))
    until(lambda: space.link("evil"), 20, "the interface of its control plane")
    broker, mtu = taken_over(stage), 1280
    address = lambda name: broker.ask("AddressIn", netns=space.path, name=name, address="10.9.9.9", len=24, there=True)
    with stage.during():
        for port in (179, 2601, 22):
            refused(stage, f"a listener at port {port}", broker.ask("Inside", netns=space.path, socket={"Listen": port}))
        refused(stage, "an address of lo", address("lo"))
        refused(stage, "the MTU of lo", broker.ask("MtuIn", netns=space.path, name="lo", mtu=mtu))
        for path in (other.path, f"/proc/{os.getpid()}/ns/net", "/etc/passwd"):
            refused(stage, "netlink elsewhere", broker.ask("Inside", netns=path, socket="Ask"))
            refused(stage, "a TAP elsewhere", broker.ask("TapIn", netns=path, name="evil", mac=None, mtu=1500, stays=False))
        # It is the right request: where the TAP is its own, it is done.
        answer = address("evil")
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
