"""Memory that a VMM gives, and takes away again."""

import mmap
import os
import resource
import struct
import time

from outside import huge, vfio, vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.flow import Beside
from outside.huge import PAGE
from outside.ring import ask
from outside.vhost import USER, Guest, Refused

BROADCAST = "ff:ff:ff:ff:ff:ff"
FRAME = vhost.frame(BROADCAST, "02:00:00:00:ee:01")
MIB = 1 << 20


@attack(needs=("root", "hugetlb"), most=True)
def hugetlb_truncation_vhost(stage):
    """Guest memory of huge pages is cut short under a ring, away from a huge page's first bytes: its port stops by name."""
    huge.pool(stage, 4)
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during(stage.seconds):
        guest = Guest(stage.at("evil.sock"), 4 * PAGE, huge.file(4), ring_at=3 * PAGE + 0x5000)
        stage.cleanup(guest.close)
        guest.out = PAGE
        guest.send(FRAME)
        stage.served("evil")
        os.ftruncate(guest.fd, 3 * PAGE)
        guest.tx.ring()
        stage.fault("evil", "memory_truncated")
    guest.front.close()


@attack(most=True)
def truncation_vfio(stage):
    """An e1000's memory is cut short under its rings: its port stops by name."""
    stage.start("e1000:DIR/evil.sock")
    with stage.during(stage.seconds):
        nic = vfio.Nic(stage.at("evil.sock"))
        stage.cleanup(nic.close)
        nic.send(FRAME)
        stage.served("evil")
        os.ftruncate(nic.fd, 0)
        try:
            for tail in range(2, 10):
                nic.client.write(vfio.TDT, tail)
        except Refused:
            pass
        stage.fault("evil", "memory_truncated")
    nic.client.close()


@attack(needs=("root", "hugetlb"))
def hugetlb_pool_exhausted(stage):
    """Huge pages that were given without a reservation are used up by another process."""
    huge.pool(stage, 3)
    stage.start("vhost-user:DIR/evil.sock")
    free = lambda: int(next(l for l in open("/proc/meminfo") if l.startswith("HugePages_Free")).split()[1])
    with stage.during(stage.seconds):
        fd = huge.file(4)
        base = vhost.libc_map(fd, 4 * PAGE)
        stage.cleanup(vhost.libc_unmap, base, 4 * PAGE)
        guest = None
        try:
            guest = Guest(stage.at("evil.sock"), PAGE, fd, start=False)
            stage.cleanup(guest.close)
            front = guest.front
            front.table([(0, 4 * PAGE, USER, 0)], [fd])
            guest.out = 0x100000
            guest.start(0, guest.rx)
            guest.start(1, guest.tx)
            front.sync()
            others = []
            for _ in range(free()):  # the first to come takes the rest of the pool
                other = huge.file(1)
                stage.cleanup(os.close, other)
                try:
                    memory = mmap.mmap(other, PAGE)
                    memory[0] = 1
                    others.append(memory)
                except (OSError, ValueError):
                    break
            guest.tx.put(0, 3 * PAGE + 0x5123, 100)  # never touched: there is no page for it
            guest.tx.offer(0)
            guest.tx.ring()
            stage.alive()
            until(lambda: stage.alive() or guest.tx.used_index() or stage.daemon.port("evil")["state"]["peer"] != "running", 10,
                  "an end of the frame")
        except Refused:
            pass  # refusing such memory is as good
        stage.alive()
    if guest:
        guest.front.close()


@attack()
def truncation_storm(stage):
    """VMMs cut their memory short under their traffic and come again, so that one's maps take the places of another's."""
    names = [f"evil{i}" for i in range(4)]
    stage.start(ports=[f"{n}=vhost-user:DIR/{n}.sock,switch=evil" for n in names])
    rounds = came = 0
    with stage.during():
        end = time.monotonic() + 2 * stage.seconds
        while time.monotonic() < end:
            name = names[rounds % 4]
            rounds += 1
            try:
                guest = Guest(stage.at(f"{name}.sock"), receive=64, size=2 << 20)
            except (Refused, OSError, TimeoutError):
                stage.alive()
                time.sleep(0.02)  # it is held off for a while
                continue
            came += 1
            try:
                for _ in range(8):
                    guest.send(FRAME)
                os.ftruncate(guest.fd, 0x1000 * (rounds % 3))
                guest.tx.ring()
                guest.front.sync()
            except (Refused, TimeoutError, OSError):
                pass
            finally:
                guest.close()
    stage.notes["rounds"] = [rounds, came]


@attack(most=True)
def truncation_of_terabytes(stage):
    """A sparse file of two terabytes is cut short, where the daemon may not have as much private memory in its place."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    stage.start("vhost-user:DIR/evil.sock", ports=["more=vhost-user:DIR/more.sock,switch=evil"], before=limit)
    with stage.during(stage.seconds):
        # What is in place of the first one's memory must leave something for the second one's.
        for name in ("evil", "more"):
            size, fd = 2 << 40, vhost.memfd(4 << 20)
            os.ftruncate(fd, size)
            # What the attacker maps is small; the table names all of it.
            guest = Guest(stage.at(f"{name}.sock"), 4 << 20, fd, start=False)
            stage.cleanup(guest.close)
            guest.front.table([(0, size, USER, 0)], [fd])
            guest.start(0, guest.rx)
            guest.start(1, guest.tx)
            guest.send(FRAME)
            stage.served(name)
            os.ftruncate(fd, 0)
            guest.tx.ring()
            stage.fault(name, "memory_truncated")


@attack()
def tables_of_1024_maps(stage):
    """Eight VMMs map 1,024 regions each; a ninth, honest one has to get in."""
    names = [f"evil{i}" for i in range(8)]
    stage.start(ports=[f"{n}=e1000:DIR/{n}.sock,switch=evil" for n in names] + ["late=vhost-user:DIR/late.sock,switch=evil"])
    total = 0
    with stage.during():
        fd = vhost.memfd(1024 << 12)
        stage.cleanup(os.close, fd)
        clients = []
        for name in names:
            client = vfio.Client(stage.at(f"{name}.sock"))
            stage.cleanup(client.close)
            clients.append(client)
            for i in range(1024):
                try:
                    client.map(i << 12, 1 << 12, fd, i << 12)
                    total += 1
                except Refused:
                    break
        try:
            guest = Guest(stage.at("late.sock"))
            stage.cleanup(guest.close)
            guest.send(vhost.frame(BROADCAST, "02:00:00:00:bb:01"))
            until(lambda: stage.daemon.port("late")["counters"]["in_frames"], 20, "in")
        except (Failure, Refused):
            raise Failure(f"beside {total} maps of others an honest VMM is refused: {stage.daemon.port('late')['state'].get('fault')}") from None
    stage.notes["maps"] = total
    for end in clients + [guest.front]:
        end.close()


def shrink(stage, what, fds):
    """Cuts each file short, if it lets itself be cut, and closes it."""
    stage.check(fds, f"no descriptor of {what} came: nothing was tried")
    for fd in fds:
        try:
            os.ftruncate(fd, 0)
            stage.notes[what] = "cut"
        except OSError as e:
            stage.notes[what] = e.strerror
        os.close(fd)


@attack()
def own_memory_cut_short(stage):
    """The memory that the daemon itself gives is cut short, punched and overwritten: a ring port's, an inflight region, an e1000e's tail registers."""
    stage.start(ports=["r=ring:DIR/r.sock,switch=evil", "evil=vhost-user:DIR/evil.sock,switch=evil", "card=e1000e:DIR/card.sock,switch=evil"])
    with stage.during(stage.seconds):
        nic = vfio.Nic(stage.at("card.sock"))
        stage.cleanup(nic.close)
        shrink(stage, "tail registers", vfio.pages(nic.client))
        nic.send(FRAME)
        nic.client.write(vfio.TDT, 0)
        guest = Guest(stage.at("evil.sock"), start=False)
        stage.cleanup(guest.close)
        answer = guest.front.ask(vhost.GET_INFLIGHT_FD, struct.pack("<QQHH", 0, 0, 2, 256).ljust(24, b"\0"))
        fds = list(guest.front.fds)
        guest.front.send(vhost.SET_INFLIGHT_FD, answer, fds[:1])
        guest.front.table([(0, guest.size, USER, 0)], [guest.fd])
        guest.start(0, guest.rx)
        guest.start(1, guest.tx)
        guest.front.sync()
        shrink(stage, "inflight region", fds)
        client, fds, _ = ask(stage, stage.at("r.sock"), 1)
        size = os.fstat(fds[0]).st_size
        memory = mmap.mmap(fds[0], size)
        for value in (0xFF, 0x55):  # all words, indices and slots
            for at in range(0, size, 4096):
                if at < 1 << 20 or at > size - (1 << 20):
                    memory[at:at + 256] = bytes([value]) * 256
            for fd in fds[1:]:
                try:
                    os.write(fd, struct.pack("<Q", 1))
                except OSError:
                    pass
            guest.send(FRAME)
        vhost.punch(fds[0], 0, size, True)
        guest.send(FRAME)
        shrink(stage, "ring port", [os.dup(fds[0])])
        guest.send(FRAME)
        guest.front.sync()
        memory.close()
    for end in (client, nic.client, guest.front):
        end.close()


@attack(needs=("root",))
def memory_that_stalls(stage):
    """A VMM punches out the memory that its frames lie in, again and again, so that an I/O core waits for each punch: its port is stopped by name, and stays so, and nobody else is."""
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])

    def punch(fd, size):
        """How long the hole takes."""
        vhost.punch(fd, 2 * MIB, size - 2 * MIB, False)
        begun = time.monotonic()
        vhost.punch(fd, 2 * MIB, size - 2 * MIB, True)
        return time.monotonic() - begun

    # On a quick machine the hole has to be larger: a port whose overruns are below 0.05 s in a second does not rest.
    size, memory = 768 * MIB, vhost.memfd(0)
    stage.cleanup(os.close, memory)
    while punch(memory, size) < 0.25 and size < 3072 * MIB:
        size *= 2
    stage.notes["mib"] = size // MIB
    guest = Guest(stage.at("evil.sock"), size=size)
    stage.cleanup(guest.close)

    sent, state = 0, {}
    with stage.during(), Beside(lambda: punch(guest.fd, size), stage.cpus):
        end = time.monotonic() + 240
        while time.monotonic() < end:
            # One frame after the other, each in another page of what is being punched.
            for _ in range(32):
                if guest.tx.next - guest.tx.used_index() & 0xFFFF >= guest.tx.size - 1:
                    time.sleep(0.002)  # the core stands still
                    continue
                slot = guest.tx.next % guest.tx.size
                guest.tx.put(slot, 2 * MIB + sent * 7919 * 4096 % (size - 4 * MIB), 100)
                guest.tx.offer(slot)
                guest.tx.ring()
                sent += 1
                time.sleep(0.0005)
            state = stage.daemon.port("evil")["state"]
            if state.get("fault"):
                break
    rests = state["overrun"]["rests"]
    stage.notes.update(sent=sent, overrun=state["overrun"])
    stage.check("memory_stalled" in str(state.get("fault")), f"after {rests} rests it has the fault {state.get('fault')}")
    stage.check(rests >= 8, f"{rests} rests are counted")
    guest.front.close()
    # Its VMM calls again, and is not let in; others are.
    again = None
    try:
        again = Guest(stage.at("evil.sock"), start=False, timeout=3)
        stage.check(False, "its VMM was let in again at once")
    except (Refused, TimeoutError, OSError):
        pass
    finally:
        if again:
            again.close()
    other = Guest(stage.at("other.sock"))
    other.send(FRAME)
    until(lambda: stage.alive() or other.tx.used_index(), 10, "another VMM's frame")
    other.close()
    stage.check(not stage.daemon.port("other")["state"].get("fault"), "another port is stopped for it")
