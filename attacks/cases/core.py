"""What keeps an I/O core, or its processor, busy with one port's affairs."""

import os
import struct
import threading
import time

from outside import disk, vfio, vhost
from outside.case import attack
from outside.daemon import Failure
from outside.flow import pause
from outside.vhost import Guest

BROADCAST = "ff:ff:ff:ff:ff:ff"


def storms(stage, register, *values):
    stage.start("e1000:DIR/evil.sock", ports=[f"evil{i}=e1000:DIR/evil{i}.sock,switch=evil" for i in (1, 2)])
    names = ("evil", "evil1", "evil2")
    with stage.during():
        start = time.monotonic()
        all_of = [stage.helper("storm", stage.at(f"{name}.sock"), stage.seconds, register, *values) for name in names]
        stage.notes["writes"] = sum(helper.end()["writes"] for helper in all_of)
        for name in names:
            stage.budget(name, start)


@attack("2.1")
def register_storm(stage):
    """Three e1000 ports write a register each as fast as they can."""
    storms(stage, 0xD0, 4)  # IMS


@attack("2.1")
def threads_on_the_core(stage):
    """Whether a thread that works for guests, VMMs or users may run on an I/O core's processor."""
    if len(os.sched_getaffinity(0)) < 2:
        raise Failure("there is one processor only")
    image = disk.image(os.path.join(disk.folder(stage), "image"), 4 << 20)
    stage.start("e1000:DIR/evil.sock", ports=["r=ring:DIR/r.sock,switch=evil", f"disk=blk:DIR/disk.sock,file={image}"])
    nic = vfio.Nic(stage.at("evil.sock"))
    stage.cleanup(nic.close)
    guest = disk.connect(stage, "disk")
    stage.control("beside an e1000")
    with stage.during():
        # The kernel's own threads do what may wait for a disk: they are the daemon's, too.
        stage.check(guest.ask(disk.FLUSH, 0)[0] == disk.OK, "the disk does not work")
        found, seen = {}, set()
        for process in [stage.daemon.pid, *descendants(stage.daemon.pid)]:
            for thread in os.listdir(f"/proc/{process}/task"):
                try:
                    name = open(f"/proc/{process}/task/{thread}/comm").read().strip()
                    allowed = os.sched_getaffinity(int(thread))
                except (OSError, ProcessLookupError):
                    continue
                seen.add(name)
                if not name.startswith("io-core") and stage.core in allowed:
                    found[name] = found.get(name, 0) + 1
    stage.check(not found, f"threads that may run on the I/O core's processor: {found}")
    unseen = [start for start in ("sidecore-door", "sidecore-hold", "sidecore-broker", "iou-wrk") if not any(name.startswith(start) for name in seen)]
    stage.check(not unseen, f"there was no {unseen}: nothing was tried")
    nic.client.close()
    guest.close()


def descendants(pid):
    """The processes that a process has started, and those that they have."""
    parents = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(number)] = int(open(f"/proc/{number}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [number for number, parent in parents.items() if parent == one]
    return found[1:]


@attack("2.1")
def mailbox_storm(stage):
    """Three e1000 ports turn their transmitter on and off: each time an I/O core gives a queue back and gets it again."""
    storms(stage, 0x400, 2, 0)  # TCTL


@attack("1.5")
def reset_storm(stage):
    """Three e1000 ports reset themselves again and again."""
    storms(stage, 0x0, 0x0400_0000, 0)  # CTRL.RST


@attack("2.2")
def eventfd_with_40000_waiters(stage):
    """An interrupt's eventfd with 40,000 waiters."""
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), receive=128)
    stage.cleanup(guest.close)
    stage.crowd(guest.rx.call)
    stop = threading.Event()

    def recycle():  # as a guest would: each buffer is offered again
        seen = 0
        while not stop.is_set():
            used = guest.rx.used_index()
            while seen != used:
                head = struct.unpack_from("<I", guest.memory, guest.rx.used + 4 + 8 * (seen % guest.rx.size))[0]
                guest.rx.offer(head % guest.rx.size)
                seen = seen + 1 & 0xFFFF
            pause(0.0005)

    with stage.during():
        thread = threading.Thread(target=recycle)
        thread.start()
        try:
            stage.helper("flood", stage.at("other.sock"), 3 * stage.seconds, "--rate", 20_000).end()
        finally:
            stop.set()
            thread.join()
        state = stage.daemon.port("evil")
        stage.notes.update(interrupts=state["counters"]["interrupts"], overrun=state["state"]["overrun"])
        stage.check(state["counters"]["interrupts"] > 50, "there were hardly any interrupts: nothing was tried")
        stage.check(state["state"]["overrun"]["rests"] > 0, "an I/O core walks all its waiters, each time")
    guest.front.close()


@attack("2.2")
def eventfd_that_blocks(stage):
    """An interrupt's eventfd that is full, and made blocking again after it was handed over."""
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), receive=128)
    stage.cleanup(guest.close)
    try:
        os.eventfd_read(guest.rx.call)
    except BlockingIOError:
        pass
    os.eventfd_write(guest.rx.call, 0xFFFF_FFFF_FFFF_FFFE)
    os.set_blocking(guest.rx.call, True)
    with stage.during():
        stage.helper("flood", stage.at("other.sock"), stage.seconds, "--rate", 10_000).end()
    os.set_blocking(guest.rx.call, False)
    guest.front.close()


@attack("1.4")
def hole_punching(stage):
    """Holes are punched into memory from which frames are being sent."""
    size = (1 << 30) if stage.full else (128 << 20)
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), size=size)
    stage.cleanup(guest.close)
    other = Guest(stage.at("other.sock"), receive=64)
    stage.cleanup(other.close)
    stop = threading.Event()

    def punch():
        while not stop.is_set():
            vhost.punch(guest.fd, 1 << 20, size - (1 << 20), False)  # filled, and punched again
            vhost.punch(guest.fd, 1 << 20, size - (1 << 20), True)

    thread = threading.Thread(target=punch)
    with stage.during():
        thread.start()
        try:
            end, i = time.monotonic() + stage.seconds, 0
            while time.monotonic() < end:
                slot = guest.tx.next % guest.tx.size
                guest.tx.put(slot, (2 << 20) + (i * 7919 * 4096) % (size - (4 << 20)), 1000)
                guest.tx.offer(slot)
                guest.tx.ring()
                i += 1
                if i % 64 == 0:
                    pause(0.001)
        finally:
            stop.set()
            thread.join()
        stage.progress("while holes are punched")
    guest.front.close()
    other.front.close()


@attack("2.1")
def enable_storm(stage):
    """A VMM enables and disables its rings as fast as it can."""
    stage.start("vhost-user:DIR/evil.sock")
    start = time.monotonic()
    guest = Guest(stage.at("evil.sock"))
    stage.cleanup(guest.close)
    with stage.during():
        end, count = time.monotonic() + stage.seconds, 0
        while time.monotonic() < end:
            for value in (0, 1):
                guest.front.state(vhost.SET_VRING_ENABLE, 1, value)
            count += 2
            if count % 64 == 0:
                guest.front.sync()
        stage.notes["messages"] = count
        stage.budget("evil", start)
    guest.front.close()


@attack("1.2")
def table_storm(stage):
    """A VMM replaces its memory table as fast as it can, under its own traffic."""
    stage.start("vhost-user:DIR/evil.sock")
    start = time.monotonic()
    guest = Guest(stage.at("evil.sock"))
    stage.cleanup(guest.close)
    with stage.during():
        end, count = time.monotonic() + stage.seconds, 0
        try:
            while time.monotonic() < end:
                guest.send(vhost.frame(BROADCAST, "02:00:00:00:ee:01"))
                guest.front.table([(0, guest.size, vhost.USER, 0)], [guest.fd])
                count += 1
                if count % 16 == 0:
                    guest.front.sync()
        except vhost.Refused:
            stage.notes["refused"] = True
        stage.notes["tables"] = count
        stage.budget("evil", start)
    guest.front.close()


@attack("2.7")
def stuck_queue_on_a_wire(stage):
    """A receiver with two queues on a wire feeds one of them a buffer now and then: flows to the other one must not wait for it."""
    stage.start(ports=["s=vhost-user:DIR/s.sock,wire=w", "r=vhost-user:DIR/r.sock,wire=w,queues=2"])
    sender = Guest(stage.at("s.sock"))
    stage.cleanup(sender.close)
    receiver = Guest(stage.at("r.sock"), start=False, features=vhost.VERSION_1 | vhost.MQ, receive=256, size=8 << 20)
    stage.cleanup(receiver.close)
    second = [vhost.Queue(receiver.memory, 5 << 20), vhost.Queue(receiver.memory, 6 << 20)]
    receiver.front.table([(0, receiver.size, vhost.USER, 0)], [receiver.fd])
    for index, queue in enumerate([receiver.rx, receiver.tx] + second):
        receiver.start(index, queue)
    receiver.front.sync()
    sender.front.sync()

    def udp(port):
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 46, 1, 0, 64, 17, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
        return (vhost.mac("02:00:00:00:bb:02") + vhost.mac("02:00:00:00:bb:01") + b"\x08\x00" + ip + struct.pack(">HHHH", port, 7, 26, 0)).ljust(60, b"\0")

    def buffer(queue):
        slot = queue.next % queue.size
        queue.put(slot, 7 << 20, 2048, vhost.WRITE)
        queue.offer(slot)

    def passed():
        end = time.monotonic() + 20
        while sender.tx.used_index() != sender.tx.next:
            if time.monotonic() > end:
                raise Failure("a frame does not pass the wire within 20 s")
            time.sleep(0)

    # Which flows go to which queue, while both have buffers.
    first, other = [], []
    for port in range(1000, 1032):
        for _ in range(4):
            buffer(second[0])
        before = receiver.rx.used_index()
        sender.send(udp(port))
        passed()
        (first if receiver.rx.used_index() != before else other).append(port)
    stage.notes["flows"] = [len(first), len(other)]
    if not first or not other:
        raise Failure("all flows go to one queue: there is nothing to tell apart")

    def waits():
        """How often the sender has waited for buffers, as the daemon counts it."""
        queues = stage.daemon.ask("GET", "/v1/queues")["queues"]
        return next(q["waits"]["count"] for q in queues if (q["port"], q["direction"]) == ("s", "ingress"))

    feeds, rounds = 15, 20
    with stage.during():
        while second[0].used_index() != second[0].next:  # use up what it has
            sender.send(udp(other[0]))
            passed()
        before, start = waits(), receiver.rx.used_index()
        for _ in range(feeds):
            got = receiver.rx.used_index()
            buffer(second[0])  # alive again, for one frame
            for port in [other[0]] + [other[0], first[0]] * rounds:
                sender.send(udp(port))
                passed()
            for place in range(got, receiver.rx.used_index()):
                head = struct.unpack_from("<I", receiver.memory, receiver.rx.used + 4 + 8 * (place % receiver.rx.size))[0]
                receiver.rx.offer(head % receiver.rx.size)
        waited = waits() - before
    stage.notes["waits"] = waited
    stage.check(0 < waited <= feeds, f"the sender waited {waited} times for a queue that gave {feeds} buffers, with {rounds} frames for it and for another queue behind each")
    arrived = receiver.rx.used_index() - start
    stage.check(arrived == feeds * rounds, f"{arrived} of {feeds * rounds} frames for the other queue arrived")
    sender.front.close()
    receiver.front.close()


@attack("2.2")
def interrupt_that_kicks(stage):
    """One eventfd is a port's interrupt and its kick, of both queues: each interrupt would wake the core for the next one."""
    stage.start("vhost-user:DIR/evil.sock", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), start=False, receive=200)
    stage.cleanup(guest.close)
    guest.front.table([(0, guest.size, vhost.USER, 0)], [guest.fd])
    fd = guest.tx.kick
    guest.start(0, guest.rx, kick=fd, call=fd)
    guest.start(1, guest.tx, kick=fd, call=fd)
    guest.front.sync()
    stage.used_before = stage.daemon.usage()  # it stays: the core has to sleep beside it
    with stage.during():
        stage.helper("flood", stage.at("other.sock"), stage.seconds, "--rate", 1000).end()
        for _ in range(100):
            guest.send(vhost.frame(BROADCAST, "02:00:00:00:ee:01"))
