/*
 * Pipes step by step: head, cur and tail of both ends after every call, buffers that go across without a copy, and
 * buffers exchanged with the port that the pipe belongs to. The port's rings have 8 slots.
 */
#define NETMAP_WITH_LIBS
#include "check.h"

#include <libnetmap.h>

static struct nmport_d *
open_end(const char *port, const char *suffix)
{
	char name[256];

	snprintf(name, sizeof(name), "%s%s", port, suffix);
	return nmport_open(name);
}

static void
put_text(struct netmap_ring *ring, uint32_t at, const char *text, uint16_t flags)
{
	memcpy(NETMAP_BUF(ring, ring->slot[at].buf_idx), text, strlen(text) + 1);
	ring->slot[at].len = (uint16_t)(strlen(text) + 1);
	ring->slot[at].flags = flags;
}

int
main(int argc, char **argv)
{
	struct nmport_d *m, *s, *port, *other;
	struct netmap_ring *mt, *mr, *st, *sr, *rx;
	uint32_t idx, far, spare, i;

	if (argc != 2 || (m = open_end(argv[1], "{1")) == NULL || (s = open_end(argv[1], "}1")) == NULL)
		return 2;
	mt = NETMAP_TXRING(m->nifp, 0);
	mr = NETMAP_RXRING(m->nifp, 0);
	st = NETMAP_TXRING(s->nifp, 0);
	sr = NETMAP_RXRING(s->nifp, 0);

	/* As registered: one ring of each direction, and one memory. */
	CHECK(m->nifp->ni_tx_rings == 1 && m->nifp->ni_rx_rings == 1 && m->reg.nr_mem_id == s->reg.nr_mem_id);
	CHECK(m->reg.nr_offset != s->reg.nr_offset && m->mem == s->mem);
	INDICES(mt, 0, 0, 7);
	INDICES(mr, 0, 0, 0);
	INDICES(st, 0, 0, 7);
	INDICES(sr, 0, 0, 0);

	/* Nothing goes across before a sync, and then at once; the sender gets the slot back when it is released. */
	put_text(mt, 0, "one", 0);
	idx = mt->slot[0].buf_idx;
	mt->head = mt->cur = 1;
	ioctl(s->fd, NIOCRXSYNC);
	INDICES(sr, 0, 0, 0);
	ioctl(m->fd, NIOCTXSYNC);
	INDICES(mt, 1, 1, 7);
	ioctl(s->fd, NIOCRXSYNC);
	INDICES(sr, 0, 0, 1);
	CHECK(sr->slot[0].buf_idx == idx && strcmp(NETMAP_BUF(sr, idx), "one") == 0);
	sr->cur = 1;
	CHECK(ask(s->fd, POLLIN, 0) == 0);
	sr->head = 1;
	ioctl(s->fd, NIOCRXSYNC);
	INDICES(sr, 1, 1, 1);
	INDICES(mt, 1, 1, 7);
	ioctl(m->fd, NIOCTXSYNC);
	INDICES(mt, 1, 1, 0);

	/* Only whole packets go. */
	put_text(mt, 1, "two", NS_MOREFRAG);
	mt->head = mt->cur = 2;
	CHECK(ask(m->fd, POLLIN, 0) == 0);
	ioctl(s->fd, NIOCRXSYNC);
	INDICES(sr, 1, 1, 1);
	put_text(mt, 2, "three", 0);
	mt->head = mt->cur = 3;
	CHECK(ask(m->fd, POLLIN, 0) == 0);
	CHECK(ask(s->fd, POLLIN, 0) == POLLIN);
	INDICES(sr, 1, 1, 3);
	CHECK(sr->slot[1].flags == NS_MOREFRAG && sr->slot[2].flags == 0);
	sr->head = sr->cur = 3;
	ioctl(s->fd, NIOCRXSYNC);

	/* Full is full: nothing is lost, and the sender waits. */
	ioctl(m->fd, NIOCTXSYNC);
	for (i = 0; i < 7; i++) {
		CHECK(ask(m->fd, POLLOUT, 0) == POLLOUT);
		put_text(mt, mt->head, "many", 0);
		mt->head = mt->cur = nm_ring_next(mt, mt->head);
	}
	CHECK(ask(m->fd, POLLOUT, 0) == 0);
	INDICES(mt, 2, 2, 2);
	ioctl(s->fd, NIOCRXSYNC);
	CHECK(nm_ring_space(sr) == 7);
	sr->head = sr->cur = 4;
	ioctl(s->fd, NIOCRXSYNC);
	CHECK(ask(m->fd, POLLOUT, 0) == POLLOUT);
	INDICES(mt, 2, 2, 3);

	/* The other way is another pair of rings. */
	put_text(st, 0, "back", 0);
	st->head = st->cur = 1;
	ioctl(s->fd, NIOCTXSYNC);
	CHECK(ask(m->fd, POLLIN, 0) == POLLIN);
	INDICES(mr, 0, 0, 1);
	CHECK(strcmp(NETMAP_BUF(mr, mr->slot[0].buf_idx), "back") == 0);

	/* A buffer of the port's own goes through the pipe, and the receiver's exchange comes back with the slot. */
	port = nmport_prepare(argv[1]);
	if (port != NULL) {
		port->reg.nr_extra_bufs = 1;
		CHECK(nmport_open_desc(port) == 0);
	}
	CHECK(port != NULL && port->mem == m->mem && port->reg.nr_mem_id == m->reg.nr_mem_id);
	if (port != NULL) {
		rx = NETMAP_RXRING(port->nifp, 0);
		spare = port->nifp->ni_bufs_head;
		CHECK(spare != 0);
		sr->head = sr->cur = sr->tail;
		ioctl(s->fd, NIOCRXSYNC);
		ioctl(m->fd, NIOCTXSYNC);
		idx = mt->slot[mt->head].buf_idx;
		far = rx->slot[0].buf_idx;
		rx->slot[0].buf_idx = idx;
		rx->slot[0].flags |= NS_BUF_CHANGED;
		i = mt->head;
		mt->slot[i].buf_idx = far;
		put_text(mt, i, "far", NS_BUF_CHANGED);
		mt->head = mt->cur = nm_ring_next(mt, i);
		ioctl(m->fd, NIOCTXSYNC);
		ioctl(s->fd, NIOCRXSYNC);
		CHECK(sr->slot[i].buf_idx == far && (sr->slot[i].flags & NS_BUF_CHANGED) != 0);
		CHECK(strcmp(NETMAP_BUF(sr, far), "far") == 0);
		sr->slot[i].buf_idx = spare;
		sr->slot[i].flags = NS_BUF_CHANGED;
		sr->head = sr->cur = sr->tail;
		ioctl(s->fd, NIOCRXSYNC);
		ioctl(m->fd, NIOCTXSYNC);
		CHECK(mt->slot[i].buf_idx == spare);
		nmport_close(port);
	}

	/* Nonsense puts one's own ring back. */
	i = sr->head;
	sr->head = 99;
	CHECK((ask(s->fd, POLLIN, 0) & POLLERR) != 0);
	INDICES(sr, i, i, i);

	/* An end is one's own; a second pipe is another one. */
	other = open_end(argv[1], "}two");
	CHECK(other != NULL);
	CHECK(open_end(argv[1], "{three") == NULL && errno == ENOSPC);
	nmport_close(other);
	nmport_close(m);
	nmport_close(s);
	return failures != 0;
}
