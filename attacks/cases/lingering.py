"""Sockets whose close waits, and bytes out of band, beside and behind the messages of VMMs."""

import os
import socket
import struct
import time

from outside import disk, vfio, vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import pause
from outside.ring import connect, ring_answer, ring_ask, vale

KINDS = {"v": "vhost-user", "g": "e1000"}
HELLO = {"v": struct.pack("<III", vhost.GET_FEATURES, 1, 0),
         "g": struct.pack("<HHIIIHH", 1, vfio.VERSION, 32, 0, 0, 0, 1) + b'{ }        \0'}
BAD = b"\xff" * 16


def lingering(seconds=3600):
    """A TCP socket whose last close waits, and what keeps it so."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    client = socket.socket()
    client.connect(listener.getsockname())
    peer, _ = listener.accept()
    client.setblocking(False)
    try:
        while True:
            client.send(b"x" * 65536)
    except BlockingIOError:
        pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    return client, (peer, listener)


def start(stage):
    stage.start(ports=[f"{name}={kind}:DIR/{name}.sock,switch=evil" for name, kind in KINDS.items()])
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


def give_holding(stage, kept, k, data, count=1):
    """Sends `data`, and with it the last references to connected sockets in which a socket that lingers waits to be read."""
    sockets = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        kept.append(theirs)
        give(stage, kept, theirs, b"x")
        sockets.append(ours)
    try:
        vhost.send_fds(k, data, [each.fileno() for each in sockets])
    except OSError as error:
        stage.notes["refused"] = error.strerror
    [each.close() for each in sockets]


def serves(stage, name, k):
    try:
        k.sendall(HELLO[name])
        stage.check(len(k.recv(1000)) > 0, f"{name} hangs up on an honest VMM")
    except OSError as error:
        stage.problems.append(f"{name} does not answer an honest VMM: {error}")


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
        answer = stage.daemon.ask("POST", "/v1/ports", {"name": name, "kind": KINDS[name], "where": where, "switch": "evil"}, wanted=None)
        return "error" not in (answer or {}) or None

    try:
        until(added, 20, "the port again")
    except Failure:
        stage.problems.append(f"{name} cannot be added again: its socket is still in use")
        return
    serves(stage, name, connect(where))


@attack()
def linger(stage):
    """TCP sockets whose close waits an hour come along with messages to each socket."""
    ports = ["r=ring:DIR/r.sock,switch=evil", "v=vhost-user:DIR/v.sock,switch=evil", "g=e1000:DIR/g.sock,switch=evil"]
    stage.start(ports=ports, args=["--vale-mode", "0666"])
    kept = []
    stage.cleanup(lambda: [k.close() for k in kept])

    def come(path, data):
        k = connect(path)
        give(stage, kept, k, data)
        kept.append(k)
        pause(0.2)

    with stage.during():
        come(stage.daemon.control, b"GET /v1/ports HTTP/1.1\r\nhost: x\r\n")
        come(stage.at("ring/.netmap"), b"x" * 64)
        stage.check(vale(connect(stage.at("ring/.netmap")), 2, "") is not None, "the netmap socket answers nobody")
        come(stage.at("r.sock"), b"x" * 64)
        k = connect(stage.at("r.sock"))
        k.sendall(ring_ask(2))
        stage.check(ring_answer(k) == 0, "the ring port answers nobody")
        k.close()
        come(stage.at("v.sock"), struct.pack("<III", 1, 1, 0))
        come(stage.at("g.sock"), struct.pack("<HHIII", 1, 1, 20, 0, 0) + b"\0\1\0\0")
        stage.control("with sockets that linger")


@attack(most=True)
def linger_with_messages(stage):
    """A socket that lingers comes behind a bad message, with a message's second piece, with two messages at once, and out of band: each port can be deleted and made again."""
    kept = start(stage)
    table = struct.pack("<IIIIIQQQQ", vhost.SET_MEM_TABLE, 1, 40, 1, 0, 0, 4096, 4096, 0)

    def behind_a_bad_message(name, k):
        k.sendall(BAD[:11])
        give(stage, kept, k, BAD[11:])

    def with_the_second_piece(name, k):
        whole = table if name == "v" else HELLO[name]
        memory = vhost.memfd(4096)
        vhost.send_fds(k, whole[:4], [memory])
        give(stage, kept, k, whole[4:])
        os.close(memory)

    def with_two_messages(name, k):
        give(stage, kept, k, HELLO[name] + HELLO[name][:5])

    def out_of_band(name, k):
        client, others = lingering()
        kept.extend(others)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", client.fileno()))]
        k.sendmsg([HELLO[name][:1]], rights, socket.MSG_OOB)
        client.close()
        k.sendall(HELLO[name])

    with stage.during():
        for way in (behind_a_bad_message, with_the_second_piece, with_two_messages, out_of_band):
            for name in KINDS:
                k = connect(stage.at(f"{name}.sock"))
                way(name, k)
                kept.append(k)
            pause(0.3)
            for name in KINDS:
                hears(stage, name)
            if stage.problems:
                raise Failure(f"{way.__name__}: {stage.problems.pop()}")


@attack()
def linger_in_a_channel(stage):
    """The sockets that a VMM gives a disk to be told on hold sockets that linger, unread; they come in pieces, in twos, unasked for, and are replaced."""
    path = disk.image(os.path.join(stage.folder(), "image"))
    stage.start(ports=[f"evil=blk:DIR/evil.sock,file={path}"])
    kept = []
    stage.cleanup(lambda: [k.close() for k in kept])
    message = struct.pack("<III", 21, 1, 0)  # SET_BACKEND_REQ_FD
    backend_req = 1 << 5

    def unasked(front):
        give_holding(stage, kept, front.sock, message, 1)

    def in_twos(front):
        give_holding(stage, kept, front.sock, message, 2)

    def in_pieces(front):
        give_holding(stage, kept, front.sock, message[:6], 1)
        give_holding(stage, kept, front.sock, message[6:], 1)

    def replaced(front):
        give_holding(stage, kept, front.sock, message, 1)
        give_holding(stage, kept, front.sock, message, 1)

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


@attack()
def linger_in_a_call_socket(stage):
    """The sockets that interrupt a VMM hold sockets that linger, unread; they come in pieces, in twos, as kicks, before their header, unasked for, and are replaced."""
    stage.start(ports=[f"{name}=vhost-user:DIR/{name}.sock,switch=evil{takes}" for name, takes in (("v", ",call-socket=on"), ("w", ""))])
    kept = []
    stage.cleanup(lambda: [k.close() for k in kept])
    message = lambda request: struct.pack("<IIIQ", request, 1, 8, 0)
    call = message(vhost.SET_VRING_CALL)
    ways = {
        "unasked": [("w", call, 1)],
        "in twos": [("v", call, 2)],
        "in pieces": [("v", call[:14], 1), ("v", call[14:], 1)],
        "before its header": [("v", struct.pack("<II", vhost.SET_FEATURES, 1), 1), ("v", struct.pack("<IQ", 8, 0), 0)],
        "as a kick": [("v", message(vhost.SET_VRING_KICK), 1)],
        "replaced": [("v", call, 1)] * 3,
        "left": [("v", call, 1)],
    }
    with stage.during():
        for way, pieces in ways.items():
            name = pieces[0][0]
            guest = vhost.Guest(stage.at(f"{name}.sock"), receive=64)
            for _, data, count in pieces:
                give_holding(stage, kept, guest.front.sock, data, count)
            if way in ("replaced", "left"):
                guest.front.sync()
            pause(0.3)
            guest.close()
            start = time.monotonic()
            try:
                vhost.Guest(stage.at(f"{name}.sock"), receive=64).close()
            except (Failure, OSError, vhost.Refused) as error:
                stage.problems.append(f"{way}: the next VMM is not served: {error!r}")
                break
            stage.notes[way] = round(time.monotonic() - start, 2)


@attack(most=True)
def linger_in_the_backlog(stage):
    """A port is deleted while connections wait that it has not let in, with sockets that linger."""
    kept = start(stage)
    with stage.during():
        for name in KINDS:
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


@attack()
def linger_a_thousand_times(stage):
    """A thousand connections end with sockets that linger unread; processes for that are few, and gone afterwards."""
    kept = start(stage)
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
    # Without a bound there is one for each connection.
    most = 2 * (4 + took + given / 100)
    stage.check(stage.notes["doors"] <= most, f"{stage.notes['doors']} doors were started for {given} connections in {took:.1f} s")


@attack(most=True)
def out_of_band(stage):
    """A message's last byte comes out of band, and then one byte out of band and no more: it counts as there and cannot be read, and no thread may look for it all the time."""
    start(stage)
    with stage.during():
        guest = vhost.Guest(stage.at("v.sock"), receive=64)
        message = struct.pack("<III", vhost.SET_VRING_ENABLE, 1, 8) + struct.pack("<II", 1, 1)
        guest.front.sock.sendall(message[:-1])
        guest.front.sock.send(message[-1:], socket.MSG_OOB)
        pause(0.5)
        hears(stage, "v")
        guest.close()
        clients = [vfio.Client(stage.at("g.sock")).sock, connect(stage.at("v.sock"))]
        before, begun = stage.threads("io-core")[1], time.monotonic()
        for k in clients:
            k.send(b"!", socket.MSG_OOB)
        pause(1)
        ticks, took = stage.threads("io-core")[1] - before, time.monotonic() - begun
        stage.notes["ticks"] = ticks
        # A look a millisecond for as long as a message may take is allowed.
        stage.check(ticks < 40 * took, f"{ticks} ticks of a processor in {took:.1f} s")
        pause(2)
        hears(stage, "g")
        hears(stage, "v")
    for k in clients:
        k.close()
