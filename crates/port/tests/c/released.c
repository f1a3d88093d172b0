/*
 * Monitors that look at rings: /z, which sees what is received when it is released, and monitors of a pipe's ends. argv: ports
 * A and B, on one switch, of rings with 8 slots.
 */
#include "check.h"

#include <libnetmap.h>

static struct nmport_d *
open_as(const char *port, const char *suffix)
{
	char name[256];

	snprintf(name, sizeof(name), "%s%s", port, suffix);
	return nmport_open(name);
}

static int
same(struct netmap_ring *r, uint32_t at, unsigned char dst, unsigned char src)
{
	const unsigned char *p = (const unsigned char *)NETMAP_BUF(r, r->slot[at].buf_idx);

	return r->slot[at].len == 60 && p[5] == dst && p[11] == src;
}

/* Checks that the next frames of a monitor have come from `first` on, and releases them. */
static void
in_order(struct nmport_d *m, uint32_t count, unsigned char dst, unsigned char first)
{
	struct netmap_ring *r = NETMAP_RXRING(m->nifp, 0);
	uint32_t i;

	await(m->fd, r, count);
	for (i = 0; i < count && r->head != r->tail; i++) {
		CHECK(same(r, r->head, dst, (unsigned char)(first + i)));
		r->head = r->cur = nm_ring_next(r, r->head);
	}
	CHECK(ioctl(m->fd, NIOCRXSYNC) == 0);
}

/* Sends as many frames as there is room for, up to `count`, numbered from `first` on; how many. */
static uint32_t
send_some(int fd, struct netmap_ring *r, uint32_t count, unsigned char dst, unsigned char first)
{
	uint32_t i;

	CHECK(ioctl(fd, NIOCTXSYNC) == 0);
	for (i = 0; i < count && nm_ring_space(r) > 0; i++) {
		put(r, r->head, dst, (unsigned char)(first + i), 0);
		r->head = r->cur = nm_ring_next(r, r->head);
	}
	CHECK(ioctl(fd, NIOCTXSYNC) == 0);
	return i;
}

static void
of_a_port(const char *a_name, const char *b_name)
{
	struct nmport_d *a = NULL, *b = NULL, *z = NULL, *early = open_as(a_name, "/z");
	struct netmap_ring *ar, *at, *bt, *zr;
	int tries;

	CHECK(early != NULL && (a = nmport_open(a_name)) != NULL && (b = nmport_open(b_name)) != NULL &&
	    (z = open_as(a_name, "/z")) != NULL);
	if (failures > 0)
		return;
	ar = NETMAP_RXRING(a->nifp, 0);
	at = NETMAP_TXRING(a->nifp, 0);
	bt = NETMAP_TXRING(b->nifp, 0);
	zr = NETMAP_RXRING(z->nifp, 0);
	/* Sent is sent. */
	send_one(a->fd, at, 2, 1);
	await(z->fd, zr, 1);
	CHECK((zr->slot[zr->head].flags & NS_TXMON) != 0);
	in_order(z, 1, 2, 1);
	in_order(early, 1, 2, 1);
	/* Received is seen when it is released, not before; what was filled anew since has not changed it. */
	CHECK(send_some(b->fd, bt, 7, 1, 20) == 7);
	await(a->fd, ar, 7);
	CHECK(ask(z->fd, POLLIN, 0) == 0);
	release(a->fd, ar);
	send_some(b->fd, bt, 7, 1, 40);
	in_order(z, 7, 1, 20);
	in_order(early, 7, 1, 20);
	CHECK((zr->slot[1].flags & NS_TXMON) == 0);
	nmport_close(z);
	/* The one that stays sees the rest, and nothing waits for the one that is gone. */
	drain(b->fd, bt);
	CHECK(ioctl(a->fd, NIOCRXSYNC) == 0);
	release(a->fd, ar);
	nmport_close(early);
	/* What comes before the core has seen that finds others before it, or no room. */
	for (tries = 0; tries < SOON / 100 && (nm_ring_empty(ar) || !same(ar, ar->head, 1, 90)); tries++) {
		release(a->fd, ar);
		send_one(b->fd, bt, 1, 90);
		ask(a->fd, POLLIN, 100);
	}
	CHECK(!nm_ring_empty(ar) && same(ar, ar->head, 1, 90));
	nmport_close(a);
	nmport_close(b);
}

static void
of_a_pipe(const char *port)
{
	/* A monitor may come before the pipe has an end. */
	struct nmport_d *t = open_as(port, "{1/t"), *m = open_as(port, "{1"), *s = open_as(port, "}1");
	struct nmport_d *r = open_as(port, "{1/r"), *z = open_as(port, "{1/z");
	struct netmap_ring *mt, *mr, *st, *sr;

	CHECK(t != NULL && m != NULL && s != NULL && r != NULL && z != NULL);
	if (failures > 0)
		return;
	mt = NETMAP_TXRING(m->nifp, 0);
	mr = NETMAP_RXRING(m->nifp, 0);
	st = NETMAP_TXRING(s->nifp, 0);
	sr = NETMAP_RXRING(s->nifp, 0);
	CHECK(t->reg.nr_mem_id != m->reg.nr_mem_id && t->mem != m->mem && t->nifp->ni_rx_rings == 1);
	/* What an end sends is seen at once, but by /z. */
	CHECK(send_some(m->fd, mt, 1, 2, 1) == 1);
	await(t->fd, NETMAP_RXRING(t->nifp, 0), 1);
	CHECK((NETMAP_RXRING(t->nifp, 0)->slot[0].flags & NS_TXMON) != 0);
	in_order(t, 1, 2, 1);
	await(s->fd, sr, 1);
	CHECK(ask(z->fd, POLLIN, 0) == 0 && ask(r->fd, POLLIN, 0) == 0);
	release(s->fd, sr);
	in_order(z, 1, 2, 1);
	/* The same for what it receives. A sender keeps slots that are not seen yet, and goes on when they are. */
	CHECK(send_some(s->fd, st, 7, 1, 10) == 7);
	in_order(r, 7, 1, 10);
	await(m->fd, mr, 7);
	CHECK(ask(z->fd, POLLIN, 0) == 0 && ask(s->fd, POLLOUT, 0) == 0);
	release(m->fd, mr);
	CHECK(ask(s->fd, POLLOUT, SOON) == POLLOUT);
	in_order(z, 7, 1, 10);
	/* One that is too slow loses frames, and the pipe none. */
	while (nm_ring_space(st) < 7)
		CHECK(ioctl(s->fd, NIOCTXSYNC) == 0);
	CHECK(send_some(s->fd, st, 7, 1, 20) == 7);
	await(m->fd, mr, 7);
	release(m->fd, mr);
	CHECK(ask(s->fd, POLLOUT, SOON) == POLLOUT);
	while (nm_ring_space(st) < 7)
		CHECK(ioctl(s->fd, NIOCTXSYNC) == 0);
	CHECK(send_some(s->fd, st, 7, 1, 30) == 7);
	await(m->fd, mr, 7);
	CHECK(same(mr, mr->head, 1, 30));
	in_order(r, 7, 1, 20);
	/* Without monitors a pipe is the ends' alone again. */
	nmport_close(r);
	nmport_close(t);
	nmport_close(z);
	release(m->fd, mr);
	CHECK(ask(s->fd, POLLOUT, SOON) == POLLOUT);
	nmport_close(m);
	nmport_close(s);
}

int
main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	of_a_port(argv[1], argv[2]);
	if (failures == 0)
		of_a_pipe(argv[1]);
	return failures != 0;
}
