"""What a third attack found: bytes out of band, and connections that end with messages which were never read."""

import contextlib
import os
import resource
import socket
import struct
import time

from outside import disk, vfio, vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import pause

from .second import connect, lingering, vale

KINDS = {"v": "vhost-user", "g": "e1000"}
HELLO = {"v": struct.pack("<III", vhost.GET_FEATURES, 1, 0),
         "g": struct.pack("<HHIIIHH", 1, vfio.VERSION, 32, 0, 0, 0, 1) + b'{ }        \0'}
BAD = b"\xff" * 16


def start(stage, *names):
    stage.start(ports=[f"{name}={KINDS[name[0]]}:DIR/{name}.sock,switch=evil" for name in names])
    kept = []
    stage.cleanup(lambda: [k.close() for k in kept])
    return kept


def give(stage, kept, k, data):
    """Sends `data`, and with it the last reference to a socket that lingers."""
    client, others = lingering()
    kept.extend(others)
    try:
        vhost.send_fds(k, data, [client.fileno()])
    except OSError as error:
        stage.notes["refused"] = error.strerror
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def hears(stage, name):
    """The conversation of a port hears its operator: the port can be deleted and made again at once, and serves a VMM."""
    start = time.monotonic()
    stage.daemon.ask("DELETE", f"/v1/ports/{name}", wanted=None)
    took = time.monotonic() - start
    stage.notes["deleted_ms"] = max(stage.notes.get("deleted_ms", 0), round(1e3 * took))
    # The daemon says so itself when it waits in vain: how long it takes follows from the machine's load, too.
    late = [line for line in stage.daemon.log("have not ended within") if f"port={name} " in line + " "]
    stage.check(not late, f"{name} is deleted after {took:.1f} s: {late}")
    where = stage.at(f"{name}.sock")

    def added():
        stage.alive()
        answer = stage.daemon.ask("POST", "/v1/ports", {"name": name, "kind": KINDS[name[0]], "where": where, "switch": "evil"}, wanted=None)
        return "error" not in (answer or {}) or None

    try:
        until(added, 20, "the port again")
    except Failure:
        stage.problems.append(f"{name} cannot be added again: its socket is still in use")
        return
    serves(stage, name, connect(where))


def serves(stage, name, k):
    try:
        k.sendall(HELLO[name[0]])
        stage.check(len(k.recv(1000)) > 0, f"{name} hangs up on an honest VMM")
    except OSError as error:
        stage.problems.append(f"{name} does not answer an honest VMM: {error}")


@contextlib.contextmanager
def limited(descriptors):
    """What is started in it may own so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def both_get_in(stage):
    guest = vhost.Guest(stage.at("v.sock"))
    client, memory = vfio.Client(stage.at("g.sock")), vhost.memfd(4096)
    client.map(0, 4096, memory)
    os.close(memory)
    client.close()
    guest.close()


@attack("third")
def out_of_band(stage):
    """The last byte of a message comes out of band, so that it counts as there and cannot be read."""
    kept = start(stage, "v")
    guest = vhost.Guest(stage.at("v.sock"), receive=64)
    with stage.during():
        message = struct.pack("<III", vhost.SET_VRING_ENABLE, 1, 8) + struct.pack("<II", 1, 1)
        guest.front.sock.sendall(message[:-1])
        guest.front.sock.send(message[-1:], socket.MSG_OOB)
        pause(0.5)
        hears(stage, "v")
    kept.append(guest.front.sock)


@attack("third")
def out_of_band_for_nothing(stage):
    """One byte out of band, and no more: the socket is readable, and there is nothing to read."""
    start(stage, "v", "g")
    clients = [vfio.Client(stage.at("g.sock")).sock, connect(stage.at("v.sock"))]
    with stage.during():
        before = stage.threads("io-core")[1]
        for k in clients:
            k.send(b"!", socket.MSG_OOB)
        pause(1)
        ticks = stage.threads("io-core")[1] - before
        stage.notes["ticks"] = ticks
        # A look a millisecond for as long as a message may take is allowed.
        stage.check(ticks < 40, f"{ticks} ticks of a processor in a second")
        pause(2)
        hears(stage, "g")
        hears(stage, "v")
    [k.close() for k in clients]


@attack("third")
def linger_behind_a_bad_message(stage):
    """A socket that lingers comes with the last byte of a message that is refused unread."""
    names = ["v", "g"]
    kept = start(stage, *names)
    with stage.during():
        for name in names:
            k = connect(stage.at(f"{name}.sock"))
            k.sendall(BAD[:11])
            give(stage, kept, k, BAD[11:])
            kept.append(k)
        pause(0.3)
        for name in names:
            hears(stage, name)


@attack("third")
def linger_with_the_second_piece(stage):
    """A message comes in two pieces, memory with the first and a socket that lingers with the second."""
    names = ["v", "g"]
    kept = start(stage, *names)
    with stage.during():
        for name in names:
            whole = HELLO[name] if name == "g" else struct.pack("<IIIIIQQQQ", vhost.SET_MEM_TABLE, 1, 40, 1, 0, 0, 4096, 4096, 0)
            k = connect(stage.at(f"{name}.sock"))
            memory = vhost.memfd(4096)
            vhost.send_fds(k, whole[:4], [memory])
            give(stage, kept, k, whole[4:])
            os.close(memory)
            kept.append(k)
        pause(0.3)
        for name in names:
            hears(stage, name)


@attack("third")
def linger_in_a_channel(stage):
    """The sockets that a VMM gives a disk to be told on hold sockets that linger, unread; they come in pieces, in twos, unasked for, and are replaced."""
    path = disk.image(os.path.join(disk.folder(stage), "image"))
    stage.start(ports=[f"evil=blk:DIR/evil.sock,file={path}"])
    kept = []
    stage.cleanup(lambda: [k.close() for k in kept])
    message = struct.pack("<III", 21, 1, 0)  # SET_BACKEND_REQ_FD
    backend_req = 1 << 5

    def channel():
        """A connected socket in which a socket that lingers waits to be read."""
        ours, theirs = socket.socketpair()
        kept.append(theirs)
        give(stage, kept, theirs, b"x")
        return ours

    def send(k, data, count):
        sockets = [channel() for _ in range(count)]
        try:
            vhost.send_fds(k, data, [each.fileno() for each in sockets])
        except OSError as error:
            stage.notes["refused"] = error.strerror
        # The receiver has the last reference.
        [each.close() for each in sockets]

    def unasked(front):
        send(front.sock, message, 1)

    def in_twos(front):
        send(front.sock, message, 2)

    def in_pieces(front):
        send(front.sock, message[:6], 1)
        send(front.sock, message[6:], 1)

    def replaced(front):
        send(front.sock, message, 1)
        send(front.sock, message, 1)

    with stage.during():
        for way in (unasked, in_twos, in_pieces, replaced):
            front = vhost.FrontEnd(stage.at("evil.sock"))
            front.hello(vhost.VERSION_1, vhost.P_REPLY_ACK | vhost.P_MQ | (0 if way is unasked else backend_req))
            way(front)
            pause(0.3)
            front.close()
            start = time.monotonic()
            try:
                disk.works(stage)
            except (Failure, OSError, vhost.Refused) as error:
                stage.problems.append(f"{way.__name__}: the next VMM is not served: {error!r}")
                break
            stage.notes[way.__name__] = round(time.monotonic() - start, 2)


@attack("third")
def linger_with_two_messages(stage):
    """One piece has a good message, the beginning of another one, and a socket that lingers."""
    names = ["v", "g"]
    kept = start(stage, *names)
    with stage.during():
        for name in names:
            k = connect(stage.at(f"{name}.sock"))
            give(stage, kept, k, HELLO[name] + HELLO[name][:5])
            kept.append(k)
        pause(0.3)
        for name in names:
            hears(stage, name)


@attack("third")
def linger_out_of_band(stage):
    """A socket that lingers comes with a byte out of band, which readers of what is in band skip."""
    names = ["v", "g"]
    kept = start(stage, *names)
    with stage.during():
        for name in names:
            k = connect(stage.at(f"{name}.sock"))
            client, others = lingering()
            kept.extend(others)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", client.fileno()))]
            k.sendmsg([HELLO[name][:1]], rights, socket.MSG_OOB)
            client.close()
            k.sendall(HELLO[name])
            kept.append(k)
        pause(0.3)
        for name in names:
            hears(stage, name)


@attack("third")
def linger_and_leave(stage):
    """Clients connect, send sockets that linger, and leave before they are let in; an honest VMM is there all the time."""
    names = ["v", "g"]
    kept = start(stage, *names)
    with stage.during():
        for name in names:
            path = stage.at(f"{name}.sock")
            honest = connect(path)
            serves(stage, name, honest)
            for _ in range(20):
                try:
                    k = connect(path, 0.5)
                    give(stage, kept, k, b"x")
                    k.close()
                except OSError:
                    pause(0.01)
            if name == "v":
                serves(stage, name, honest)
            else:
                honest.sendall(struct.pack("<HHIIIIIII", 2, vfio.GET_INFO, 32, 0, 0, 16, 0, 0, 0))
                try:
                    stage.check(len(honest.recv(1000)) > 0, "g hangs up on an honest VMM")
                except OSError as error:
                    stage.problems.append(f"g does not answer an honest VMM: {error}")
            honest.close()
            for _ in range(6):
                try:
                    k = connect(path, 0.5)
                    give(stage, kept, k, b"x")
                    k.close()
                except OSError:
                    pause(0.01)
            hears(stage, name)


@attack("third")
def linger_in_the_backlog(stage):
    """A port is deleted while connections wait that it has not let in, with sockets that linger."""
    names = ["v", "g"]
    kept = start(stage, *names)
    with stage.during():
        for name in names:
            first = connect(stage.at(f"{name}.sock"))
            # In the middle of a message the port admits no other client.
            first.sendall(b"\1")
            pause(0.1)
            for _ in range(3):
                k = connect(stage.at(f"{name}.sock"), 0.5)
                give(stage, kept, k, b"x")
                kept.append(k)
            kept.append(first)
            hears(stage, name)


@attack("third")
def linger_a_thousand_times(stage):
    """A thousand connections end with sockets that linger unread; processes for that are few, and gone afterwards."""
    kept = start(stage, "v", "g")
    door = lambda: stage.daemon.ask("GET", "/v1/daemon")["door"]
    before, start_of_it = door(), time.monotonic()
    given = 0
    with stage.during():
        client, others = lingering()
        kept.extend(others)
        honest = connect(stage.at("v.sock"))
        serves(stage, "v", honest)
        while given < 1000 and time.monotonic() - start_of_it < 10:
            try:
                k = connect(stage.at("v.sock"), 1)
                vhost.send_fds(k, b"x", [client.fileno()])
                k.close()
                given += 1
            except OSError:
                pause(0.005)
        client.close()
        serves(stage, "v", honest)
        honest.close()
        hears(stage, "v")
    after, took = door(), time.monotonic() - start_of_it
    stage.notes.update(given=given, doors=after["started"] - before["started"], kept=after.get("kept", 0) - before.get("kept", 0))
    most = 4 + took + given / 100
    stage.check(stage.notes["doors"] <= most, f"{stage.notes['doors']} doors were started for {given} connections in {took:.1f} s")


@attack("third")
def stranger_storm(stage):
    """A vfio-user client gives a file that is no memory, again and again: each time a door ends, and another is started."""
    start(stage, "g")
    door = lambda: stage.daemon.ask("GET", "/v1/daemon")["door"]["started"]
    null, before, begun, refused = os.open("/dev/null", os.O_RDWR), door(), time.monotonic(), 0
    stage.cleanup(os.close, null)
    client = vfio.Client(stage.at("g.sock"))
    with stage.during():
        end = time.monotonic() + max(4, stage.seconds)
        while time.monotonic() < end:
            try:
                client.map(0, 4096, null)
            except vhost.Refused:
                refused += 1
        stage.control("under strangers")
    doors, took = door() - before, time.monotonic() - begun
    stage.notes.update(refused=refused, doors=doors)
    stage.check(refused > 0, "it was not refused")
    stage.check(doors <= 10 + 3 * took, f"{doors} doors in {took:.1f} s")
    client.close()


@attack("third", needs=("root",))
def descriptors_under_way(stage):
    """A process of root's user, without a capability, keeps more descriptors under way than a door may own."""
    with limited(1024):
        start(stage, "v", "g")
    end, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            end.close()
            sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            event = os.eventfd(0)
            for _ in range(12):
                vhost.send_fds(sockets[0], b"x", [event] * 253)
            theirs.send(b"y")
            theirs.recv(1)
        finally:
            os._exit(0)
    theirs.close()
    stage.cleanup(end.close)
    with stage.during():
        end.settimeout(10)
        stage.check(end.recv(1) == b"y", "descriptors are not under way")
        both_get_in(stage)
    # It has the neighbours' pipes, too.
    end.close()
    os.waitpid(child, 0)


@attack("third")
def few_descriptors(stage):
    """The daemon may own 400 descriptors, fewer than a door wants."""
    with limited(400):
        start(stage, "v", "g")
    with stage.during():
        both_get_in(stage)


@attack("third", needs=("root",))
def netmap_places(stage):
    """Four users have all connections to the netmap socket that they may; then root wants one."""
    stage.start(args=["--vale-mode", "0666"])
    for folder in (stage.at(""), stage.at("ring")):
        os.chmod(folder, 0o755)
    end, theirs = socket.socketpair()
    children = []
    for user in range(61001, 61005):
        child = os.fork()
        if child == 0:
            try:
                end.close()
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                places = []
                for _ in range(256):
                    places.append(connect(stage.at("ring/.netmap")))
                    vale(places[-1], 2, "")
            except OSError:
                pass
            theirs.send(b"y")
            theirs.recv(1)
            os._exit(0)
        children.append(child)
    theirs.close()
    stage.cleanup(lambda: (end.close(), [os.waitpid(child, 0) for child in children]))
    with stage.during():
        end.settimeout(30)
        for _ in children:
            end.recv(1)
        stage.notes["places"] = stage.daemon.ask("GET", "/v1/daemon")["clients"]["netmap"]["open"]
        try:
            stage.check(vale(connect(stage.at("ring/.netmap")), 2, "") is not None, "root is refused at the netmap socket")
        except OSError as error:
            stage.problems.append(f"root is refused at the netmap socket: {error}")
    end.close()
    [os.waitpid(child, 0) for child in children]
    children.clear()
