/*
 * Ports that share a memory, step by step. argv: ports A and B, which share one, and C, which has one of its own; all on one
 * switch, of rings with 8 slots.
 */
#include "check.h"

#include <libnetmap.h>

static struct nmport_d *
open_host(const char *port)
{
	char name[256];

	snprintf(name, sizeof(name), "%s^", port);
	return nmport_open(name);
}

static int
is_from(struct netmap_ring *r, uint32_t at, unsigned char dst, unsigned char src)
{
	const unsigned char *p = (const unsigned char *)NETMAP_BUF(r, r->slot[at].buf_idx);

	return r->slot[at].len == 60 && p[5] == dst && p[11] == src;
}

int
main(int argc, char **argv)
{
	struct nmport_d *a, *b, *c;
	struct netmap_ring *ar, *bt, *br, *cr, *ct;
	uint32_t mine, theirs;

	if (argc != 4 || (a = nmport_open(argv[1])) == NULL || (b = nmport_open(argv[2])) == NULL ||
	    (c = nmport_open(argv[3])) == NULL)
		return 2;
	ar = NETMAP_RXRING(a->nifp, 0);
	bt = NETMAP_TXRING(b->nifp, 0);
	br = NETMAP_RXRING(b->nifp, 0);
	ct = NETMAP_TXRING(c->nifp, 0);
	cr = NETMAP_RXRING(c->nifp, 0);

	/* One memory, one place in the program; rings and buffers are each port's own at first. */
	CHECK(a->reg.nr_mem_id == b->reg.nr_mem_id && a->mem == b->mem && a->reg.nr_memsize == b->reg.nr_memsize);
	CHECK(c->reg.nr_mem_id != a->reg.nr_mem_id && c->mem != a->mem && a->reg.nr_offset != b->reg.nr_offset);
	CHECK(ar != br && ar->slot[0].buf_idx != br->slot[0].buf_idx && bt->slot[0].buf_idx != br->slot[0].buf_idx);
	INDICES(ar, 0, 0, 0);
	INDICES(bt, 0, 0, 7);
	CHECK(NETMAP_BUF(ar, 5) == NETMAP_BUF(bt, 5));

	/* From A's ring to B's, without a copy: the buffers are exchanged. */
	send_one(c->fd, ct, 7, 3);
	await(a->fd, ar, 1);
	await(b->fd, br, 1);
	release(b->fd, br);
	CHECK(is_from(ar, 0, 7, 3));
	mine = ar->slot[0].buf_idx;
	theirs = bt->slot[0].buf_idx;
	bt->slot[0].buf_idx = mine;
	bt->slot[0].len = ar->slot[0].len;
	bt->slot[0].flags = NS_BUF_CHANGED;
	ar->slot[0].buf_idx = theirs;
	ar->slot[0].flags = NS_BUF_CHANGED;
	((unsigned char *)NETMAP_BUF(bt, mine))[11] = 2;
	bt->head = bt->cur = 1;
	CHECK(ioctl(b->fd, NIOCTXSYNC) == 0);
	drain(b->fd, bt);
	INDICES(bt, 1, 1, 0);
	await(c->fd, cr, 1);
	CHECK(is_from(cr, 0, 7, 2));
	INDICES(cr, 0, 0, 1);
	/* A receives it, too: the next one in the ring. */
	await(a->fd, ar, 2);
	release(a->fd, ar);
	INDICES(ar, 2, 2, 2);

	/* A client that comes again finds the buffers as they were left, since others may hold them, and the indices at their
	 * start. */
	nmport_close(a);
	CHECK((a = nmport_open(argv[1])) != NULL && a->mem == b->mem);
	if (failures > 0)
		return 1;
	ar = NETMAP_RXRING(a->nifp, 0);
	INDICES(ar, 0, 0, 0);
	CHECK(ar->slot[0].buf_idx == theirs && bt->slot[0].buf_idx == mine);
	send_one(c->fd, ct, 8, 3);
	await(a->fd, ar, 1);
	CHECK(is_from(ar, 0, 8, 3));

	/* What such a port does not have. */
	nmport_close(a);
	CHECK(open_host(argv[1]) == NULL && errno == EOPNOTSUPP);
	CHECK((a = nmport_prepare(argv[1])) != NULL);
	a->reg.nr_extra_bufs = 3;
	CHECK(nmport_open_desc(a) == 0 && a->reg.nr_extra_bufs == 0 && a->nifp->ni_bufs_head == 0);
	nmport_close(a);
	nmport_close(b);
	nmport_close(c);
	return failures != 0;
}
