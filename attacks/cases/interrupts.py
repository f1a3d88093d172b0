"""Descriptors by which guests are interrupted and programs are woken."""

import mmap
import os
import socket
import struct
import threading
import time

from outside import vfio, vhost, words
from outside.case import attack
from outside.flow import pause
from outside.ring import Ring, ask
from outside.vhost import Guest

BROADCAST = "ff:ff:ff:ff:ff:ff"


def interrupted(stage, turn):
    """Frames come for port `evil`, whose owner takes its `turn` all the time, until an I/O core has lost time with its waiters."""
    stop, state = threading.Event(), {}

    def turns():
        while not stop.is_set():
            turn()
            pause(0.0005)

    thread = threading.Thread(target=turns)
    with stage.during():
        thread.start()
        try:
            for _ in range(20):
                stage.helper("flood", stage.at("other.sock"), 3 * stage.seconds, "--rate", 20_000).end()
                state = stage.daemon.port("evil")
                # A core that has little of its processor meets few waiters.
                if state["state"]["overrun"]["total_us"] > 0:
                    break
        finally:
            stop.set()
            thread.join()
    overrun, count = state["state"]["overrun"], state["counters"]["interrupts"]
    stage.notes.update(interrupts=count, overrun=overrun)
    stage.check(count > 5, f"{count} interrupts: nothing was tried")
    stage.check(overrun["total_us"] > 0, "an I/O core walks all its waiters, and that is nobody's time")
    stage.judge(overrun["rests"] > 0, "an I/O core walks all its waiters, each time")


def interrupt_with_waiters(stage, options, call):
    """A guest is interrupted by `call`, which gives the daemon's end and its own."""
    stage.start(f"vhost-user:DIR/evil.sock{options}", ports=["other=vhost-user:DIR/other.sock,switch=evil"])
    guest = Guest(stage.at("evil.sock"), receive=128)
    stage.cleanup(guest.close)
    theirs, ours = call(guest)
    stage.crowd(ours)
    seen = 0

    def recycle():  # as a guest would: the interrupt is read, and each buffer is offered again
        nonlocal seen
        try:
            while theirs != ours and os.read(ours, 4096):
                pass
        except BlockingIOError:
            pass
        used = guest.rx.used_index()
        while seen != used:
            head = struct.unpack_from("<I", guest.memory, guest.rx.used + 4 + 8 * (seen % guest.rx.size))[0]
            guest.rx.offer(head % guest.rx.size)
            seen = seen + 1 & 0xFFFF

    interrupted(stage, recycle)
    guest.front.close()


@attack()
def eventfd_with_40000_waiters(stage):
    """An interrupt's eventfd has 40,000 waiters: what raising it costs is the port's overrun."""
    interrupt_with_waiters(stage, "", lambda guest: (guest.rx.call, guest.rx.call))


@attack()
def call_socket_with_40000_waiters(stage):
    """An interrupt's socket has 40,000 waiters at its other end: what sending to it costs is the port's overrun."""

    def call(guest):
        theirs, ours = socket.socketpair()
        stage.cleanup(lambda: [theirs.close(), ours.close()])
        ours.setblocking(False)
        guest.front.send(vhost.SET_VRING_CALL, struct.pack("<Q", 0), [theirs.fileno()])
        guest.front.sync()
        return theirs.fileno(), ours.fileno()

    interrupt_with_waiters(stage, ",call-socket=on", call)


@attack()
def wake_up_pipe_with_40000_waiters(stage):
    """A ring client's wake-up pipe has 40,000 waiters: what waking it costs is the port's overrun."""
    stage.start(ports=["evil=ring:DIR/evil.sock,switch=evil", "other=vhost-user:DIR/other.sock,switch=evil"])
    client, fds, info = ask(stage, stage.at("evil.sock"), 1)
    memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
    receives = Ring(memory, info, info["tx_rings"])
    # The memory; a kick for each ring on which it sends; the pipes of those rings, and those of the rings on which it receives.
    stage.crowd(fds[1 + 2 * info["tx_rings"]])
    ticket = 0

    def release():  # as a client would that sleeps again at once: each slot is given back, and each time it asks to be woken
        nonlocal ticket
        receives.give(words.get(memory, receives.hwcur + 4))
        ticket += 1
        words.put(memory, receives.head + 8, ticket)

    interrupted(stage, release)
    memory.close()
    client.close()


@attack()
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


@attack()
def resample_for_ever(stage):
    """Eventfds that stay readable tell the ends of an e1000's interrupts: a semaphore, and the interrupt's own."""
    stage.start("e1000:DIR/evil.sock")
    trigger, unmask = 4 | 32, 4 | 16

    def reads():
        """System calls that read, by the port's thread."""
        for task in os.listdir(f"/proc/{stage.daemon.pid}/task"):
            if open(f"/proc/{stage.daemon.pid}/task/{task}/comm").read().strip() == "vfu-evil":
                lines = open(f"/proc/{stage.daemon.pid}/task/{task}/io").read().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("syscr"))

    with stage.during():
        for semaphore in (True, False):
            nic = vfio.Nic(stage.at("evil.sock"))
            event = os.eventfd(0, (os.EFD_SEMAPHORE if semaphore else 0) | os.EFD_NONBLOCK)
            if not semaphore:
                nic.client.ask(vfio.SET_IRQS, struct.pack("<5I", 20, trigger, 0, 0, 1), [event])
            nic.client.ask(vfio.SET_IRQS, struct.pack("<5I", 20, unmask, 0, 0, 1), [event])
            if semaphore:
                os.eventfd_write(event, 1 << 60)
            else:
                nic.client.write(vfio.IMS, 4)
                nic.client.write(vfio.ICS, 4)
            start, before = time.monotonic(), reads()
            pause(1)
            rate = (reads() - before) / (time.monotonic() - start)
            stage.notes["semaphore" if semaphore else "its own"] = round(rate)
            stage.check(rate <= 40000, f"{'a semaphore' if semaphore else 'the interrupt itself'}: {rate:.0f} reads a second")
            nic.close()
            os.close(event)
