"""Users and programs at ring ports and at the netmap socket."""

import mmap
import os
import struct

from outside import vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.ring import Connected, Ring, ask, connect, place, ring_answer, ring_ask, vale


@attack(needs=("root",), most=True)
def netmap_users(stage):
    """A user at the netmap socket parts others' ports, keeps them, names the pipes of all, and takes all memory and all places: it has its own share alone."""
    stage.start(args=["--vale-mode", "0666"])
    for folder in (stage.at(""), stage.at("ring")):
        os.chmod(folder, 0o755)
    honest, evil = (Connected(user, stage.at("ring/.netmap")) for user in (1501, 1502))
    root = Connected(0, stage.at("ring/.netmap"))
    with stage.during():
        a, b = honest(), evil()
        answers = [vale(b, verb, name) for verb, name in ((6, "valen:a"), (5, "valeevil:b"), (4, "a"), (5, "valen:lo"))]
        stage.check(0 not in answers, f"what a user does with others' ports and switches: {answers}")
        greedy = Connected(1510, evil.path)()
        answers = [vale(greedy, 1, f"vale9:x{i}", 4096, 16) for i in range(4)]
        stage.check(answers.count(0) <= 1, f"ports of 1.3 GiB with their monitors: {answers}")
        greedy.close()
        until(lambda: sorted(stage.daemon.ports()) == list("abcd"), 30, "the ports of one that has left are gone")
        stage.check(vale(a, 1, "vale9:a", 64, 1) == 0, "an honest user gets no port")
        stage.check(vale(b, 1, "vale9:a") != 0, "another user keeps a port")
        a.close()
        until(lambda: "vale9.a" not in stage.daemon.ports(), 20, "the port goes with its user")
        # Pipes in its own port's memory, by a name that others will use.
        answers = [vale(b, 1, "vale9:b", 64, 1), place(b, 1, "lb{1@vale9:b")[0]]
        stage.check(answers == [0, 0], f"what a user does with its own port is refused: {answers}")
        r = root()
        stage.notes["pipes"] = [place(b, 1, "lb{1"), place(r, 1, "lb{1")]
        stage.check(stage.notes["pipes"][0] == (0, "vale9:b"), "a user's own name does not lead to its port")
        stage.check(stage.notes["pipes"][1] != (0, "vale9:b"), "root's program is led into another user's memory")
        made = 0
        while made < 200 and vale(b, 1, f"vale9:q{made}", 2, 1) == 0:
            made += 1
        a = honest()
        stage.notes["places"] = made
        stage.check(vale(a, 1, "vale9:mine", 2, 1) == 0, f"one user has all {made} places")
        more = [Connected(1503 + i, evil.path)() for i in range(6)]
        for k in more:
            for i in range(64):
                if vale(k, 1, f"vale9:u{k.fileno()}.{i}", 2, 1):
                    break
        stage.check(vale(r, 1, "vale9:root", 2, 1) == 0, "root gets no place beside six users")
        for k in (a, b, r, *more):
            k.close()
        until(lambda: sorted(stage.daemon.ports()) == list("abcd"), 10, "all places are returned")


@attack()
def pipe_ends(stage):
    """A client opens one end of one pipe again and again, each time by another connection."""
    stage.start(ports=["r=ring:DIR/r.sock,switch=evil", "late=vhost-user:DIR/late.sock,switch=evil"])
    most = 1500 if stage.full else 300
    connections = []
    stage.cleanup(lambda: [k.close() for k in connections])
    with stage.during():
        opened = 0
        for _ in range(most):
            k = connect(stage.at("r.sock"))
            k.sendall(ring_ask(4, 1))
            opened += ring_answer(k) == 0
            connections.append(k)
        stage.notes["open ends"] = opened
        stage.check(0 < opened <= 64, f"{opened} ends of one pipe were opened")
        stage.control("with all of them")
        guest = vhost.Guest(stage.at("late.sock"))
        guest.front.sync()
        guest.close()
        for k in connections:
            k.close()


def held(files):
    """Bytes of memory that these files have."""
    return sum(512 * os.fstat(fd).st_blocks for fd in files)


@attack()
def memory_of_ring_clients(stage):
    """Ring clients and monitors come, and leave with the descriptor of their memory, again and again: all of it counts as the daemon's."""
    stage.start(ports=["evil=ring:DIR/evil.sock,switch=evil"])
    kept, each = [], 0
    with stage.during():
        for n in range(60):
            # Attached, or a monitor of what is sent and received.
            client, fds, info = ask(stage, stage.at("evil.sock"), *((1, 0) if n % 3 == 0 else (5, 3)))
            kept.append(fds[0])
            each = max(each, held(fds[:1]))
            client.close()
            stage.alive()
        stage.notes.update(each_kib=each >> 10)
        stage.check(each > 1 << 20, f"a client's memory has {each} bytes: nothing was tried")
        try:
            until(lambda: stage.alive() or held(kept) <= each, 10, "it is given back")
        except Failure:
            stage.check(False, f"{len(kept)} clients that have left keep {held(kept) >> 20} MiB")
    # The next one has a port that works.
    client, fds, info = ask(stage, stage.at("evil.sock"), 1)
    memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
    ring = Ring(memory, info)
    ring.put(0, ring.buffer(0), 60)
    ring.give(1)
    os.write(fds[1], struct.pack("<Q", 1))
    until(lambda: stage.alive() or ring.taken() == 1, 10, "a frame of the next client is taken")
    memory.close()
    client.close()


def found(folder, name):
    """The socket of the port `name` in `folder`."""
    names = [entry for entry in os.listdir(folder) if entry.startswith(name)]
    return names and os.path.join(folder, names[0])


@attack(needs=("root",))
def memory_of_ports_on_demand(stage):
    """A user has ports made at the netmap socket, attaches, and gives each port back with its memory kept: its share of the memory is not all that it has."""
    stage.start(args=["--vale-mode", "0666"])
    for folder in (stage.at(""), stage.at("ring")):
        os.chmod(folder, 0o755)
    user = Connected(1000, stage.at("ring/.netmap"))
    kept, each = [], 0
    with stage.during():
        for n in range(20):
            k = user()
            stage.check(vale(k, 1, f"vale9:k{n}", 256, 1) == 0, "the user gets no port")
            path = until(lambda: found(stage.at("ring"), f"vale9:k{n}"), 20, "the port's socket")
            client, fds, _ = ask(stage, path, 1)
            kept.append(fds[0])
            each = max(each, held(fds[:1]))
            # The port goes first, and its client is still there.
            k.close()
            until(lambda: f"vale9.k{n}" not in stage.daemon.ports(), 10, "the port goes with its user")
            client.close()
        stage.notes.update(each_kib=each >> 10)
        stage.check(each > 256 << 10, f"a port's memory has {each} bytes: nothing was tried")
        try:
            until(lambda: stage.alive() or held(kept) <= each, 10, "it is given back")
        except Failure:
            stage.check(False, f"{len(kept)} ports that are gone keep {held(kept) >> 20} MiB")
