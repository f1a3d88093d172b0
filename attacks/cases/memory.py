"""Memory that a VMM gives, and takes away again."""

import mmap
import os
import struct
import time

from outside import fuse, huge, vfio, vhost
from outside.case import attack
from outside.daemon import Failure, until
from outside.vhost import Guest, Refused, USER

BROADCAST = "ff:ff:ff:ff:ff:ff"
FRAME = vhost.frame(BROADCAST, "02:00:00:00:ee:01")


def served(stage, name, frames=1):
    """Waits until the daemon has taken frames from a port: it does touch the memory."""
    until(lambda: stage.alive() or stage.daemon.port(name)["counters"]["in_frames"] >= frames, 10, f"a frame of port {name}")


@attack("1.1", needs=("root", "hugetlb"))
def hugetlb_truncation_vhost(stage):
    """Guest memory of huge pages is cut short under a ring away from a huge page's first bytes."""
    huge.pool(stage, 4)
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during(stage.seconds):
        guest = Guest(stage.at("evil.sock"), 4 * huge.PAGE, huge.file(4), ring_at=3 * huge.PAGE + 0x5000)
        stage.cleanup(guest.close)
        guest.out = huge.PAGE
        guest.send(FRAME)
        served(stage, "evil")
        os.ftruncate(guest.fd, 3 * huge.PAGE)
        guest.tx.ring()
        stage.fault("evil", "memory_truncated")
    guest.front.close()


@attack("1.1", needs=("root", "hugetlb"))
def hugetlb_truncation_vfio(stage):
    """The same for an e1000's memory and rings."""
    huge.pool(stage, 4)
    stage.start("e1000:DIR/evil.sock")
    with stage.during(stage.seconds):
        nic = vfio.Nic(stage.at("evil.sock"), 4 * huge.PAGE, huge.file(4), ring_at=3 * huge.PAGE + 0x5000)
        stage.cleanup(nic.close)
        nic.out = huge.PAGE
        nic.send(FRAME)
        served(stage, "evil")
        os.ftruncate(nic.fd, 3 * huge.PAGE)
        try:
            for tail in range(2, 10):
                nic.client.write(vfio.TDT, tail)
        except Refused:
            pass
        stage.fault("evil", "memory_truncated")
    nic.client.close()


@attack("1.1")
def truncation_vhost(stage):
    """Guest memory of small pages is cut short under a ring."""
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during(stage.seconds):
        guest = Guest(stage.at("evil.sock"))
        stage.cleanup(guest.close)
        guest.send(FRAME)
        served(stage, "evil")
        os.ftruncate(guest.fd, 0)
        guest.tx.ring()
        stage.fault("evil", "memory_truncated")
    guest.front.close()


@attack("1.1")
def truncation_vfio(stage):
    """The same for an e1000's memory and rings."""
    stage.start("e1000:DIR/evil.sock")
    with stage.during(stage.seconds):
        nic = vfio.Nic(stage.at("evil.sock"))
        stage.cleanup(nic.close)
        nic.send(FRAME)
        served(stage, "evil")
        os.ftruncate(nic.fd, 0)
        try:
            for tail in range(2, 10):
                nic.client.write(vfio.TDT, tail)
        except Refused:
            pass
        stage.fault("evil", "memory_truncated")
    nic.client.close()


@attack("1.1", needs=("root", "hugetlb"))
def hugetlb_pool_exhausted(stage):
    """Huge pages that were given without a reservation are used up by another process."""
    huge.pool(stage, 3)
    stage.start("vhost-user:DIR/evil.sock")
    free = lambda: int(next(l for l in open("/proc/meminfo") if l.startswith("HugePages_Free")).split()[1])
    with stage.during(stage.seconds):
        fd = huge.file(4)
        base = vhost.libc_map(fd, 4 * huge.PAGE)
        stage.cleanup(vhost.libc_unmap, base, 4 * huge.PAGE)
        guest = None
        try:
            guest = Guest(stage.at("evil.sock"), huge.PAGE, fd, start=False)
            stage.cleanup(guest.close)
            front = guest.front
            front.table([(0, 4 * huge.PAGE, USER, 0)], [fd])
            guest.out = 0x100000
            guest.start(0, guest.rx)
            guest.start(1, guest.tx)
            front.sync()
            others = []
            for _ in range(free()):  # the first to come takes the rest of the pool
                other = huge.file(1)
                stage.cleanup(os.close, other)
                try:
                    memory = mmap.mmap(other, huge.PAGE)
                    memory[0] = 1
                    others.append(memory)
                except (OSError, ValueError):
                    break
            guest.tx.put(0, 3 * huge.PAGE + 0x5123, 100)  # never touched: there is no page for it
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


def stalled(stage, how, kind="vhost-user", silent=True):
    """Gives a file whose server never answers as `how`; then deletes the port, asks the control socket, and ends the daemon."""
    stage.start(f"{kind}:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    trap = fuse.Stalled(4 << 20, silent)
    stage.cleanup(trap.close)
    with stage.during(max(stage.seconds, 1.5)):
        front = how(trap)
        if front is not None:
            stage.cleanup(front.close)
        stage.progress("while a foreign file does not answer")
        stage.control("while a foreign file does not answer")
        start = time.monotonic()
        try:
            stage.daemon.ask("DELETE", "/v1/ports/evil", timeout=6, wanted=None)
        except TimeoutError:
            raise Failure("DELETE of the port does not end within 6 s") from None
        stage.notes["delete_s"] = round(time.monotonic() - start, 2)
        stage.control("after DELETE of the port")
    # The end of the daemon is bounded while the file still does not answer.
    stage.neighbours.end()
    took = stage.daemon.stop(15)
    stage.notes["end_s"] = round(took, 2)
    stage.check(not stage.neighbours.last()["flows"][0]["lost"], "neighbours' frames are lost")
    stage.spared.add("end")


def dma(stage, trap):
    client = vfio.Client(stage.at("evil.sock"), timeout=3)
    try:
        client.map(0, 4 << 20, trap.file)
        client.write(4, 6, vfio.CONFIG, 2)
        client.write(vfio.TDBAL, 0x1000)
        client.write(vfio.TDLEN, 4096)
        client.write(vfio.TCTL, 2)
        client.write(vfio.TDT, 5)
    except (Refused, TimeoutError) as e:
        stage.notes["answer"] = str(e)
    return client


@attack("1.2", needs=("root", "fuse"))
def fuse_dma_map(stage):
    """An e1000's DMA memory is a file whose server never answers anything."""
    stalled(stage, lambda trap: dma(stage, trap), "e1000")


@attack("1.2", needs=("root", "fuse"))
def fuse_dma_read(stage):
    """An e1000's DMA memory is a file whose server tells its attributes, and never what is in it."""
    stalled(stage, lambda trap: dma(stage, trap), "e1000", silent=False)


@attack("1.2", needs=("root", "fuse"))
def fuse_mem_table(stage):
    """A vhost-user memory region is a file whose server never answers."""
    def how(trap):
        guest = Guest(stage.at("evil.sock"), start=False)
        try:
            guest.front.table([(0, 4 << 20, USER, 0)], [trap.file])
            guest.start(0, guest.rx)
            guest.start(1, guest.tx)
            guest.tx.ring()
        except (Refused, TimeoutError) as e:
            stage.notes["answer"] = str(e)
        return guest
    stalled(stage, how)


def log(stage, trap):
    guest = Guest(stage.at("evil.sock"), features=vhost.VERSION_1 | vhost.LOG_ALL, receive=64)
    guest.front.sock.settimeout(3)
    try:
        guest.front.ask(vhost.SET_LOG_BASE, struct.pack("<QQ", 1 << 20, 0), [trap.file])
        guest.front.sync()
        other = Guest(stage.at("other.sock"))
        stage.cleanup(other.close)
        other.send(FRAME)  # what the attacker receives is logged
        until(lambda: other.tx.used_index(), 3, "received")
    except (Refused, TimeoutError, Failure) as e:
        stage.notes["answer"] = str(e)
    return guest


@attack("1.2", needs=("root", "fuse"))
def fuse_log_read(stage):
    """The dirty log is a file whose server tells its attributes, and never what is in it."""
    stalled(stage, lambda trap: log(stage, trap), silent=False)


@attack("1.2", needs=("root", "fuse"))
def fuse_log_base(stage):
    """The dirty log is a file whose server never answers."""
    stalled(stage, lambda trap: log(stage, trap))


@attack("1.2", needs=("root", "fuse"))
def fuse_inflight(stage):
    """The memory of requests under way is a file whose server never answers."""
    def how(trap):
        guest = Guest(stage.at("evil.sock"), start=False)
        try:
            guest.front.send(vhost.SET_INFLIGHT_FD, struct.pack("<QQHH", 1 << 16, 0, 2, 256).ljust(24, b"\0"), [trap.file])
            guest.front.table([(0, guest.size, USER, 0)], [guest.fd])
            guest.start(0, guest.rx)
            guest.start(1, guest.tx)
            guest.send(FRAME)
        except (Refused, TimeoutError) as e:
            stage.notes["answer"] = str(e)
        return guest
    stalled(stage, how)


@attack("1.2", needs=("root", "fuse"))
def fuse_kick_and_call(stage):
    """Kick and interrupt descriptors are files whose server never answers."""
    def how(trap):
        guest = Guest(stage.at("evil.sock"), start=False)
        try:
            guest.front.table([(0, guest.size, USER, 0)], [guest.fd])
            guest.start(0, guest.rx, kick=trap.file, call=trap.file)
            guest.start(1, guest.tx, kick=trap.file, call=trap.file)
            guest.send(FRAME)
        except (Refused, TimeoutError) as e:
            stage.notes["answer"] = str(e)
        return guest
    stalled(stage, how)


@attack("1.2", needs=("root", "fuse"))
def fuse_irqs(stage):
    """An e1000's interrupt is a file whose server never answers."""
    def how(trap):
        client = vfio.Client(stage.at("evil.sock"), timeout=3)
        try:
            client.ask(vfio.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 0, 0, 1), [trap.file])
            client.write(vfio.IMS, 0xFFFFFFFF)
            client.write(0xC8, 4)  # ICS
        except (Refused, TimeoutError) as e:
            stage.notes["answer"] = str(e)
        return client
    stalled(stage, how, "e1000")


def parent(number):
    """The parent of a process, and the words it was started with."""
    try:
        with open(f"/proc/{number}/stat") as stat, open(f"/proc/{number}/cmdline", "rb") as line:
            return int(stat.read().rsplit(") ", 1)[1].split()[1]), line.read().split(b"\0")
    except (OSError, IndexError):
        return 0, []


def doors(daemon):
    """Processes that receive descriptors for this daemon: children of its broker. One that is ending has no words any more."""
    every = {int(n): parent(n) for n in os.listdir("/proc") if n.isdigit()}
    brokers = [n for n, (of, _) in every.items() if of == daemon.pid]
    return [n for n, (of, words) in every.items() if of in brokers and b"hold" not in words]


@attack("1.2", needs=("root", "fuse"))
def fuse_again_and_again(stage):
    """VMMs of two ports come again and again, each with a file whose server never answers; nothing piles up, and others are served."""
    stage.start("e1000:DIR/evil.sock", ports=["also=vhost-user:DIR/also.sock,switch=evil", "other=vhost-user:DIR/other.sock,switch=evil"])
    trap = fuse.Stalled(4 << 20)
    stage.cleanup(trap.close)
    before, most, given, said = len(doors(stage.daemon)), 0, 0, set()
    sockets = [vhost.memfd(4096)]
    stage.cleanup(lambda: [os.close(fd) for fd in sockets])
    with stage.during():
        end = time.monotonic() + 2 * stage.seconds
        while time.monotonic() < end:
            for name in ("evil", "also"):
                try:
                    if name == "evil":
                        client = vfio.Client(stage.at("evil.sock"), timeout=0.2)
                        try:
                            for _ in range(8):
                                client.map(0, 4 << 20, trap.file)
                        finally:
                            client.close()
                    else:
                        guest = Guest(stage.at("also.sock"), start=False, timeout=0.2)
                        try:
                            guest.front.table([(0, 4 << 20, USER, 0)], [trap.file])
                            guest.front.sync()
                        finally:
                            guest.close()
                except (Refused, TimeoutError, OSError) as e:
                    said.add(str(e))
                given += 1
            most = max(most, len(doors(stage.daemon)))
        # Another guest's descriptors are received meanwhile.
        other = Guest(stage.at("other.sock"))
        try:
            other.send(FRAME)
            until(other.tx.used_index, 10, "another VMM's frame sent")
        finally:
            other.close()
    stage.notes.update(vmms=given, doors=(before, most), said=sorted(said))
    stage.check(most <= before + 2, f"{most} processes wait for a file of two ports; {before} were there before")
    # As soon as the files are closed both ports let VMMs in again.
    trap.close()

    def let_in(make):
        def tried():
            stage.alive()
            try:
                return make()
            except (Refused, TimeoutError, OSError):
                return None
        return until(tried, 20, "a VMM let in again")

    client = let_in(lambda: vfio.Client(stage.at("evil.sock"), timeout=1))
    client.map(0, 4096, sockets[0])
    client.close()
    let_in(lambda: Guest(stage.at("also.sock"), timeout=1)).close()
    until(lambda: len(doors(stage.daemon)) <= before, 20, "every door but one ended")


def pages_of(client):
    """The file behind the pages of BAR 0 that a guest may map."""
    client.send(vfio.GET_REGION_INFO, struct.pack("<IIIIQQ", 4096, 0, 0, 0, 0, 0))
    data, fds = client.with_fds()
    return fds


@attack("own", needs=())
def own_pages_cut_short(stage):
    """A VMM cuts the file short that it was given for an e1000's tail registers."""
    stage.start("e1000e:DIR/evil.sock")
    with stage.during(stage.seconds):
        nic = vfio.Nic(stage.at("evil.sock"))
        stage.cleanup(nic.close)
        fds = pages_of(nic.client)
        stage.check(fds, "no descriptor came: nothing was tried")
        shrink(stage, fds)
        nic.send(FRAME)
        nic.client.write(vfio.TDT, 0)
    nic.client.close()


@attack("own")
def own_inflight_cut_short(stage):
    """A VMM cuts the inflight region short that it was given, and uses it."""
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during(stage.seconds):
        guest = Guest(stage.at("evil.sock"), start=False)
        stage.cleanup(guest.close)
        try:
            answer = guest.front.ask(vhost.GET_INFLIGHT_FD, struct.pack("<QQHH", 0, 0, 2, 256).ljust(24, b"\0"))
            fds = list(guest.front.fds)
            guest.front.send(vhost.SET_INFLIGHT_FD, answer, fds[:1])
            guest.front.table([(0, guest.size, USER, 0)], [guest.fd])
            guest.start(0, guest.rx)
            guest.start(1, guest.tx)
            guest.front.sync()
            shrink(stage, fds)
            guest.send(FRAME)
            guest.front.sync()
        except Refused:
            pass
    guest.front.close()


@attack("own")
def own_ring_memory_cut_short(stage):
    """A ring client cuts its port's memory short, punches it, and writes nonsense into it."""
    import socket
    stage.start(ports=["r=ring:DIR/r.sock,switch=evil", "evil=vhost-user:DIR/evil.sock,switch=evil"])
    from cases.local import ring_message
    with stage.during(stage.seconds):
        sock = socket.socket(socket.AF_UNIX)
        stage.cleanup(sock.close)
        sock.settimeout(8)
        sock.connect(stage.at("r.sock"))
        sock.sendall(ring_message(1))
        _, rights, _, _ = sock.recvmsg(128, socket.CMSG_SPACE(4 * 64))
        fds = [fd for _, _, raw in rights for (fd,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4])]
        stage.check(fds, "no descriptor came: nothing was tried")
        if fds:
            size = os.fstat(fds[0]).st_size
            memory = mmap.mmap(fds[0], size)
            guest = Guest(stage.at("evil.sock"))
            stage.cleanup(guest.close)
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
            shrink(stage, fds[:1])
            guest.send(FRAME)
            for fd in fds[1:]:
                os.close(fd)
            try:
                memory.close()
            except BufferError:
                pass
            guest.front.close()
        sock.close()


def shrink(stage, fds):
    """Cuts each file short, if it lets itself be cut, and closes it."""
    for fd in fds:
        try:
            os.ftruncate(fd, 0)
            stage.notes["cut"] = True
        except OSError as e:
            stage.notes["cut"] = str(e)
        os.close(fd)


@attack("1.1", needs=("root", "hugetlb"))
def hugetlb_punched(stage):
    """A huge page under a ring is punched out, and another process takes it."""
    huge.pool(stage, 4)
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during(stage.seconds):
        try:
            guest = Guest(stage.at("evil.sock"), 4 * huge.PAGE, huge.file(4), ring_at=3 * huge.PAGE + 0x5000)
            stage.cleanup(guest.close)
            guest.out = huge.PAGE
            guest.send(FRAME)
            served(stage, "evil")
            vhost.punch(guest.fd, 3 * huge.PAGE, huge.PAGE, True)
            other = huge.file(1)
            stage.cleanup(os.close, other)
            vhost.punch(other, 0, huge.PAGE, False)
            guest.tx.ring()
            guest.front.sync()
        except Refused:
            pass
    guest.front.close()


@attack("1.1")
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


@attack("1.2")
def map_storm(stage):
    """A VMM maps and unmaps the memory under its running e1000 as fast as it can."""
    stage.start("e1000:DIR/evil.sock")
    count = 0
    with stage.during():
        start = time.monotonic()
        nic = vfio.Nic(stage.at("evil.sock"))
        stage.cleanup(nic.close)
        end = time.monotonic() + stage.seconds
        try:
            while time.monotonic() < end:
                nic.send(FRAME)
                nic.client.unmap(0, nic.size)
                nic.client.map(0, nic.size, nic.fd)
                nic.client.write(vfio.TCTL, 2)
                count += 1
        except Refused as e:
            stage.notes["refused"] = str(e)
        stage.notes["maps"] = count
        stage.budget("evil", start)
    nic.client.close()


@attack("third")
def truncation_of_terabytes(stage):
    """A sparse file of two terabytes is cut short, where the daemon may not have as much private memory in its place."""
    import resource

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
            served(stage, name)
            os.ftruncate(fd, 0)
            guest.tx.ring()
            stage.fault(name, "memory_truncated")


@attack("third")
def untouched_pages(stage):
    """Each frame lies in a page that was never touched, and the I/O core has the kernel find and clear it."""
    size, ring = 256 << 20, 2048
    stage.start("vhost-user:DIR/evil.sock")
    with stage.during():
        guest = Guest(stage.at("evil.sock"), size, start=False, ring=ring)
        stage.cleanup(guest.close)
        guest.front.table([(0, size, USER, 0)], [guest.fd])
        guest.start(0, guest.rx)
        guest.start(1, guest.tx)
        tx, first, sent = guest.tx, 2 << 20, 0
        for place in range(ring):
            struct.pack_into("<H", guest.memory, tx.avail + 4 + 2 * place, place)
        end, at = time.monotonic() + max(stage.seconds, 2), first
        while time.monotonic() < end:
            for place in range(sent, sent + ring):
                # 14 bytes behind a header of zeros: a page that was never written holds that.
                tx.put(place % ring, at, 26)
                at += 4096
            sent += ring
            tx.index(sent & 0xFFFF)
            tx.ring()
            until(lambda: stage.alive() or tx.used_index() == sent & 0xFFFF, 30, "the daemon takes the frames")
            if at + ring * 4096 > size:
                vhost.punch(guest.fd, first, size - first, True)
                at = first
        stage.progress("while untouched pages are sent")
        counters = stage.daemon.port("evil")["counters"]
        stage.notes["a_batch"] = round(counters["in_frames"] / max(counters["batches"], 1))
        stage.check(counters["in_frames"] < 224 * counters["batches"], f"{stage.notes['a_batch']} frames a batch: no bound in time ends them")
    guest.front.close()
