"""Senders whose memory the kernel has to find and clear while an I/O core reads it."""

import struct
import time

from outside import vhost
from outside.case import attack
from outside.daemon import until
from outside.huge import A_FEW, PAGE, huge_file
from outside.vfio import RCTL, RDH, RDT, TDH, TDT, Nic
from outside.vhost import USER, Guest, Refused


@attack()
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


def taken(stage, condition):
    """Waits until the daemon has taken all. False: it has stopped the port instead, for the time that its pages took, as it may."""
    def end():
        stage.alive()
        try:
            if condition():
                return "all"
        except Refused:
            pass
        return "memory_stalled" in str(stage.daemon.port("evil")["state"].get("fault")) and "stopped"
    return until(end, 60, "the daemon has taken all") == "all"


@attack(needs=("root",))
def untouched_tables(stage):
    """The descriptors of each frame end in a huge page of their own that was never touched."""
    slots, first = 120, 8
    size = (first + 2 * slots + 2) * PAGE
    stage.start("vhost-user:DIR/evil.sock")
    fd = huge_file(stage, size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, features=vhost.VERSION_1 | vhost.INDIRECT, start=False)
    stage.cleanup(guest.close)
    tx = guest.tx

    def untouched(slot):
        return (first + 2 * slot + 1) * PAGE

    for slot in range(slots):
        # Header and frame are zeros; the second descriptor is one, too: it is empty, and ends the chain.
        struct.pack_into("<QIHH", guest.memory, untouched(slot) - 64, 4 * PAGE, 26, vhost.NEXT, 8)
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    with stage.during():
        end, first_burst = time.monotonic() + max(stage.seconds, 2), None
        while time.monotonic() < end:
            for slot in range(slots):
                vhost.punch(fd, untouched(slot), PAGE, True)
            places = [(tx.next + i) % tx.size for i in range(slots)]
            for slot, place in enumerate(places):
                tx.put(place, untouched(slot) - 64, 4096, vhost.INDIRECT_FLAG)
            tx.offer(*places)
            tx.ring()
            whole = taken(stage, lambda: tx.used_index() == tx.next)
            first_burst = first_burst or stage.daemon.port("evil")
            if not whole:
                break
        port = stage.daemon.port("evil")
        batches, slow = first_burst["counters"]["batches"], first_burst["state"]["slow"]
        stage.notes.update(slow=port["state"]["slow"], batches=batches)
        stage.check(not whole or not port["state"].get("fault"), f"port evil: {port['state'].get('fault')}")
        # Without a bound all tables are followed at once, and then the frames are taken in few batches.
        bounded = batches >= 30 or 2 * slow["longest_us"] <= slow["total_us"]
        stage.check(bounded, f"{slots} frames were taken in {batches} batches, the longest of {slow['longest_us'] // 1000} ms: no bound in time ends it")
    guest.front.close()


@attack(needs=("root",))
def dropped_frames(stage):
    """Frames that are dropped as soon as they are read: each begins in a huge page of its own that was never touched."""
    count, first = 120, 8
    size = (first + count + 2) * PAGE
    stage.start("vhost-user:DIR/evil.sock")
    fd = huge_file(stage, size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, start=False)
    stage.cleanup(guest.close)
    tx, header = guest.tx, 4 * PAGE
    # An offload that was not negotiated: a checksum to be made.
    guest.memory[header:header + 12] = b"\1\1" + b"\0" * 10
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    with stage.during():
        for slot in range(count):
            vhost.punch(fd, (first + slot) * PAGE, PAGE, True)
            tx.put(2 * slot, header, 12, vhost.NEXT, 2 * slot + 1)
            tx.put(2 * slot + 1, (first + slot) * PAGE, 60)
        tx.offer(*range(0, 2 * count, 2))
        tx.ring()
        whole = taken(stage, lambda: tx.used_index() == tx.next)
        port = stage.daemon.port("evil")
        batches, slow = port["counters"]["batches"], port["state"]["slow"]
        stage.notes.update(slow=slow, batches=batches, drops=port["counters"]["drops"])
        stage.check(not whole or not port["state"].get("fault"), f"port evil: {port['state'].get('fault')}")
        stage.check(not whole or sum(port["counters"]["drops"].values()) == count, "not all frames were dropped: nothing was tried")
        # Without a bound all are read at once.
        bounded = batches >= 30 or 2 * slow["longest_us"] <= slow["total_us"]
        stage.check(bounded, f"{count} frames were dropped in {batches} batches, the longest of {slow['longest_us'] // 1000} ms: no bound in time ends it")
    guest.front.close()


@attack(needs=("root",))
def dropped_packets(stage):
    """An e1000's packets ask to be cut without a word about their headers: each begins in a huge page of its own that was never touched."""
    count, first = 100, 8
    size = (first + count + 2) * PAGE
    stage.start("e1000:DIR/evil.sock")
    fd = huge_file(stage, size)
    nic = Nic(stage.at("evil.sock"), size, fd=fd)
    stage.cleanup(nic.close)
    with stage.during():
        for slot in range(count):
            vhost.punch(fd, (first + slot) * PAGE, PAGE, True)
            # 60 bytes, EOP, RS; DEXT, a data descriptor, TSE (8254x SDM 3.3.7)
            word = 60 | 1 << 24 | 1 << 27 | 1 << 29 | 1 << 20 | 1 << 26
            struct.pack_into("<QQ", nic.memory, nic.tx_ring + 16 * slot, (first + slot) * PAGE, word)
        nic.client.write(TDT, count)
        whole = taken(stage, lambda: nic.client.read(TDH) == count)
        port = stage.daemon.port("evil")
        batches, slow = port["counters"]["batches"], port["state"]["slow"]
        stage.notes.update(slow=slow, batches=batches, drops=port["counters"]["drops"])
        stage.check(not whole or sum(port["counters"]["drops"].values()) == count, "not all packets were dropped: nothing was tried")
        bounded = batches >= 25 or 2 * slow["longest_us"] <= slow["total_us"]
        stage.check(bounded, f"{count} packets were dropped in {batches} batches, the longest of {slow['longest_us'] // 1000} ms: no bound in time ends it")
    nic.client.close()


@attack(needs=("root",))
def looped_packets(stage):
    """An e1000 in loopback receives what it sends, each packet into a huge page of its own that was never touched."""
    count, first = 100, 8
    size = (first + count + 2) * PAGE
    stage.start("e1000:DIR/evil.sock")
    fd = huge_file(stage, size)
    nic = Nic(stage.at("evil.sock"), size, fd=fd, receive=1)
    stage.cleanup(nic.close)
    write = nic.client.write
    write(RCTL, 0)
    for slot in range(count):
        struct.pack_into("<QQ", nic.memory, nic.rx_ring + 16 * slot, (first + slot) * PAGE, 0)
    write(RDH, 0)
    write(RDT, count)
    write(RCTL, 0x2 | 0x8 | 0x10 | 0x40 | 0x8000)  # enable, promiscuous, loopback, broadcasts
    frame = vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01")
    nic.memory[nic.out:nic.out + len(frame)] = frame
    with stage.during():
        for slot in range(count):
            vhost.punch(fd, (first + slot) * PAGE, PAGE, True)
            struct.pack_into("<QQ", nic.memory, nic.tx_ring + 16 * slot, nic.out, 60 | 1 << 24 | 1 << 27)
        write(TDT, count - 1)
        whole = taken(stage, lambda: nic.client.read(TDH) == count - 1)
        slow, received = stage.daemon.port("evil")["state"]["slow"], nic.client.read(RDH) if whole else None
        stage.notes.update(slow=slow, received=received)
        stage.check(not whole or received > 0, "nothing was received: nothing was tried")
        # With a bound a visit ends after a few packets, and is no slow one, or one of many. All packets take longer than A_FEW.
        bounded = 2 * slow["longest_us"] <= slow["total_us"] or slow["longest_us"] <= A_FEW
        stage.check(bounded, f"{slow['longest_us'] // 1000} of {slow['total_us'] // 1000} ms were one visit: no bound in time ends it")
    nic.client.close()


@attack(needs=("root",))
def frames_of_untouched_pieces(stage):
    """A frame's first bytes are where they should be, and each of 60 further pieces lies in a huge page that was never touched: to copy, cut or sum it up has the kernel clear them all."""
    first, pieces, count = 8, 60, 6
    size = (first + pieces * count) * PAGE
    stage.start("vhost-user:DIR/evil.sock,mtu=9000", ports=["other=vhost-user:DIR/other.sock,switch=evil,mtu=9000"])
    other = Guest(stage.at("other.sock"), receive=16)  # does not take frames in pieces, nor offloads
    stage.cleanup(other.close)
    fd = huge_file(stage, size)
    guest = Guest(stage.at("evil.sock"), size, fd=fd, ring=1024, start=False, features=vhost.VERSION_1 | vhost.CSUM)
    stage.cleanup(guest.close)
    tx, memory = guest.tx, guest.memory
    guest.front.table([(0, size, vhost.USER, 0)], [fd])
    guest.start(0, guest.rx)
    guest.start(1, tx)
    guest.front.sync()
    page = lambda i: (first + i) * PAGE
    stage.undisturbed()
    renew = lambda: vhost.punch(fd, page(0), pieces * count * PAGE, True)

    def usual():
        renew()
        took = []
        for i in range(pieces):
            start = time.thread_time()
            memory[page(i)]
            took.append(time.thread_time() - start)
        return round(1e6 * sorted(took)[pieces // 2])

    with stage.during():
        each = usual()
        for kind, header in (("plain", bytes(12)), ("checksum", struct.pack("<BBHHHHH", 1, 0, 0, 0, 34, 6, 0))):
            renew()
            data = header + vhost.frame("ff:ff:ff:ff:ff:ff", "02:00:00:00:ee:01", 100)
            memory[4 * PAGE:4 * PAGE + len(data)] = data
            heads = []
            for n in range(count):
                slot = n * (pieces + 1)
                heads.append(slot)
                tx.put(slot, 4 * PAGE, len(data), vhost.NEXT, slot + 1)
                for i in range(pieces):
                    last = i + 1 == pieces
                    tx.put(slot + 1 + i, page(n * pieces + i), 20, 0 if last else vhost.NEXT, slot + 2 + i)
            tx.offer(*heads)
            tx.ring()
            if not taken(stage, lambda: tx.used_index() == tx.next & 0xFFFF):
                break
        each = max(each, usual())
        slow = stage.daemon.port("evil")["state"]["slow"]
        stage.notes.update(slow=slow, page_us=each)
        # With a bound a visit ends with the page that took it beyond its turn.
        bounded = slow["longest_us"] <= 2 * A_FEW + 8 * each or 8 * slow["longest_us"] <= slow["total_us"]
        stage.check(bounded, f"a visit of {slow['longest_us'] // 1000} ms, where a page takes {each} us")
    guest.front.close()
    other.front.close()
