/*
 * Step by step: head, cur and tail after every call, against netmap's rules. Ports A and B are on one switch of
 * rings with 8 slots; each line that fails is printed, and the exit code says whether any did.
 */
#define NETMAP_WITH_LIBS
#include "check.h"

#include <libnetmap.h>
#include <stdlib.h>
#include <unistd.h>

int
main(int argc, char **argv)
{
	struct nmport_d *a, *b;
	struct netmap_ring *at, *ar, *bt, *br;
	struct nmreq_header header = { .nr_version = NETMAP_API };
	struct nmreq_port_hdr length = { .nr_hdr_len = 99 };
	struct nmreq_port_info_get info;
	uint32_t i, saved;
	char far[60];

	if (argc != 3 || (a = nmport_prepare(argv[1])) == NULL || (b = nmport_open(argv[2])) == NULL)
		return 2;
	/* One of the two that the port has. */
	a->reg.nr_extra_bufs = 1;
	if (nmport_open_desc(a) < 0)
		return 2;
	at = NETMAP_TXRING(a->nifp, 0);
	ar = NETMAP_RXRING(a->nifp, 0);
	bt = NETMAP_TXRING(b->nifp, 0);
	br = NETMAP_RXRING(b->nifp, 0);

	/* As registered. */
	CHECK(at->num_slots == 8 && at->dir == 0 && br->dir == 1 && at->nr_buf_size == 2048);
	INDICES(at, 0, 0, 7);
	INDICES(ar, 0, 0, 0);
	CHECK(nm_ring_space(at) == 7 && nm_ring_empty(ar));
	CHECK(a->reg.nr_extra_bufs == 1 && a->nifp->ni_bufs_head != 0);
	CHECK(*(uint32_t *)NETMAP_BUF(at, a->nifp->ni_bufs_head) == 0 && b->nifp->ni_bufs_head == 0);
	CHECK(a->nifp->ni_version == NETMAP_API);

	/* Nothing happens before a sync, and poll without events to wait for finds nothing. */
	put(at, 0, 2, 1, 0);
	at->head = at->cur = 1;
	INDICES(at, 1, 1, 7);
	CHECK(ask(b->fd, POLLIN, 0) == 0);

	/* txsync: the slot comes back when the engine has taken it. */
	CHECK(ioctl(a->fd, NIOCTXSYNC) == 0);
	drain(a->fd, at);
	INDICES(at, 1, 1, 0);

	/* Asleep until it comes; then tail has moved, and head and cur have not. */
	CHECK(ask(b->fd, POLLIN, 10000) == POLLIN);
	INDICES(br, 0, 0, 1);
	CHECK(br->slot[0].len == 60 && NS_RFRAGS(&br->slot[0]) == 1);

	/* cur at tail: seen, not released; poll waits for more. */
	br->cur = 1;
	CHECK(ask(b->fd, POLLIN, 0) == 0);
	INDICES(br, 0, 1, 1);
	br->head = 1;
	CHECK(ioctl(b->fd, NIOCRXSYNC) == 0);
	INDICES(br, 1, 1, 1);

	/* poll(POLLIN) flushes what is to be sent; both addresses are known after this. */
	put(bt, 0, 1, 2, 0);
	bt->head = bt->cur = 1;
	CHECK(ask(b->fd, POLLIN, 0) == 0);
	CHECK(ask(a->fd, POLLIN, 10000) == POLLIN);
	INDICES(ar, 0, 0, 1);
	ar->head = ar->cur = 1;
	ioctl(a->fd, NIOCRXSYNC);

	/* A receiver's ring holds n - 1; the rest is lost there, and the sender is not held up. */
	for (i = 0; i < 10; i++) {
		CHECK(ask(a->fd, POLLOUT, 10000) == POLLOUT);
		put(at, at->head, 2, 1, 0);
		at->head = at->cur = nm_ring_next(at, at->head);
		ioctl(a->fd, NIOCTXSYNC);
		drain(a->fd, at);
	}
	ioctl(b->fd, NIOCRXSYNC);
	INDICES(br, 1, 1, 0);
	CHECK(nm_ring_space(br) == 7);
	br->head = br->cur = 0;
	ioctl(b->fd, NIOCRXSYNC);
	INDICES(br, 0, 0, 0);

	/* A packet of three slots arrives whole, with its own slots counted. */
	saved = at->head;
	for (i = 0; i < 3; i++)
		put(at, (saved + i) % 8, 2, 1, i < 2 ? NS_MOREFRAG : 0);
	at->head = at->cur = (saved + 3) % 8;
	ioctl(a->fd, NIOCTXSYNC);
	CHECK(ask(b->fd, POLLIN, 10000) == POLLIN);
	CHECK(nm_ring_space(br) == 1 && br->slot[0].len == 180 && br->slot[0].flags == 1 << 8);
	br->head = br->cur = br->tail;
	ioctl(b->fd, NIOCRXSYNC);

	/* Indirect: the bytes are the program's own. */
	drain(a->fd, at);
	memcpy(far, "\x02\0\0\0\0\x02\x02\0\0\0\0\x01 indirect", 22);
	saved = at->head;
	at->slot[saved].flags = NS_INDIRECT;
	at->slot[saved].len = 60;
	at->slot[saved].ptr = (uint64_t)(uintptr_t)far;
	at->head = at->cur = nm_ring_next(at, saved);
	ioctl(a->fd, NIOCTXSYNC);
	CHECK(ask(b->fd, POLLIN, 10000) == POLLIN);
	CHECK(memcmp(NETMAP_BUF(br, br->slot[br->head].buf_idx) + 12, " indirect", 9) == 0);
	br->head = br->cur = br->tail;
	ioctl(b->fd, NIOCRXSYNC);

	/* Exchanged buffers inside the region: an extra one goes out, the old one is ours. */
	drain(a->fd, at);
	saved = at->slot[at->head].buf_idx;
	at->slot[at->head].buf_idx = a->nifp->ni_bufs_head;
	at->slot[at->head].flags = NS_BUF_CHANGED;
	put(at, at->head, 2, 1, NS_BUF_CHANGED);
	at->head = at->cur = nm_ring_next(at, at->head);
	ioctl(a->fd, NIOCTXSYNC);
	CHECK(ask(b->fd, POLLIN, 10000) == POLLIN);
	CHECK(saved != a->nifp->ni_bufs_head);

	/* Nonsense: the ring goes back to where it was, sync says nothing, poll says POLLERR. */
	drain(a->fd, at);
	saved = at->head;
	at->head = at->cur = 8;
	CHECK(ioctl(a->fd, NIOCTXSYNC) == 0);
	INDICES(at, saved, saved, (saved + 7) % 8);
	at->cur = (saved + 8 - 1) % 8;
	at->head = (saved + 1) % 8;
	at->tail = 3;
	CHECK(ask(a->fd, POLLOUT, 10000) == POLLOUT);
	drain(a->fd, at);
	INDICES(at, (saved + 1) % 8, (saved + 7) % 8, saved);
	at->head = (saved + 3) % 8; /* cur behind head */
	at->cur = (saved + 2) % 8;
	CHECK((ask(a->fd, POLLOUT, 0) & POLLERR) != 0);
	INDICES(at, (saved + 1) % 8, (saved + 1) % 8, saved);
	at->slot[0].buf_idx = 1u << 30;
	at->slot[1].len = 5000;
	at->head = 77;
	CHECK((ask(a->fd, POLLOUT, 0) & POLLERR) != 0);
	CHECK(at->slot[0].buf_idx == 0 && at->slot[0].len == 0 && at->slot[1].len == 0);
	br->cur = 100;
	CHECK((ask(b->fd, POLLIN, 0) & POLLERR) != 0);
	CHECK(br->head == br->cur);

	/* Requests. */
	strcpy(header.nr_name, a->hdr.nr_name);
	header.nr_reqtype = NETMAP_REQ_PORT_HDR_GET;
	header.nr_body = (uint64_t)(uintptr_t)&length;
	CHECK(ioctl(a->fd, NIOCCTRL, &header) == 0 && length.nr_hdr_len == 0);
	header.nr_reqtype = NETMAP_REQ_PORT_HDR_SET;
	length.nr_hdr_len = 11;
	CHECK(ioctl(a->fd, NIOCCTRL, &header) < 0 && errno == EINVAL);
	header.nr_reqtype = NETMAP_REQ_PORT_INFO_GET;
	header.nr_body = (uint64_t)(uintptr_t)&info;
	CHECK(ioctl(a->fd, NIOCCTRL, &header) == 0 && info.nr_tx_slots == 8 && info.nr_mem_id != 0);
	header.nr_version = 13;
	CHECK(ioctl(a->fd, NIOCCTRL, &header) < 0 && errno == EINVAL);

	/* Two descriptors of one port share it; what cannot be says so. */
	CHECK(nmport_open("netmap:/nowhere/at/all") == NULL);
	CHECK(nmport_open("eth0") == NULL && errno == EINVAL);
	{
		struct nmport_d *c = nmport_open(argv[1]);

		CHECK(c != NULL && c->mem == a->mem && c->fd != a->fd);
		if (c != NULL)
			nmport_close(c);
	}

	/* Descriptors that are none of ours are the kernel's affair. */
	{
		int fds[2];
		struct pollfd mixed[2];

		CHECK(pipe(fds) == 0);
		br->head = br->cur = br->tail;
		mixed[0] = (struct pollfd){ .fd = b->fd, .events = POLLIN };
		mixed[1] = (struct pollfd){ .fd = fds[0], .events = POLLIN };
		CHECK(poll(mixed, 2, 0) == 0);
		CHECK(write(fds[1], "x", 1) == 1);
		CHECK(poll(mixed, 2, -1) == 1 && mixed[0].revents == 0 && mixed[1].revents == POLLIN);
		close(fds[0]);
		close(fds[1]);
	}
	nmport_close(a);
	CHECK(ask(b->fd, POLLIN, 0) == 0);
	nmport_close(b);
	return failures != 0;
}
