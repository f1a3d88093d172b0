/*
 * Monitors step by step: what each of /t, /r and /rt sees of port A, and head, cur and tail after every call. argv: ports A
 * and B, on one switch, of rings with 8 slots.
 */
#include "check.h"

#include <libnetmap.h>

static struct nmport_d *
monitor(const char *port, const char *flags)
{
	char name[256];

	snprintf(name, sizeof(name), "%s/%s", port, flags);
	return nmport_open(name);
}

static int
same(struct netmap_ring *r, uint32_t at, unsigned char dst, unsigned char src)
{
	const unsigned char *p = (const unsigned char *)NETMAP_BUF(r, r->slot[at].buf_idx);

	return r->slot[at].len == 60 && p[5] == dst && p[11] == src;
}

int
main(int argc, char **argv)
{
	struct nmport_d *a, *b, *t, *r, *both;
	struct netmap_ring *at, *ar, *bt, *br, *mt, *mr, *mb, *none;
	uint32_t i;

	if (argc != 3 || (t = monitor(argv[1], "t")) == NULL || (a = nmport_open(argv[1])) == NULL ||
	    (b = nmport_open(argv[2])) == NULL)
		return 2;
	at = NETMAP_TXRING(a->nifp, 0);
	ar = NETMAP_RXRING(a->nifp, 0);
	bt = NETMAP_TXRING(b->nifp, 0);
	br = NETMAP_RXRING(b->nifp, 0);

	/* As registered, while others have the port: rings to receive on, in memory of their own. */
	CHECK((r = monitor(argv[1], "r")) != NULL && (both = monitor(argv[1], "rt")) != NULL);
	if (failures > 0)
		return 1;
	CHECK(t->reg.nr_rx_rings == 1 && t->reg.nr_rx_slots == 8);
	CHECK(t->reg.nr_mem_id != a->reg.nr_mem_id && t->reg.nr_mem_id != r->reg.nr_mem_id && t->mem != r->mem);
	mt = NETMAP_RXRING(t->nifp, 0);
	mr = NETMAP_RXRING(r->nifp, 0);
	mb = NETMAP_RXRING(both->nifp, 0);
	INDICES(mt, 0, 0, 0);
	CHECK(mt->dir == 1 && mt->num_slots == 8 && ask(t->fd, POLLIN, 0) == 0);
	/* As in netmap, a ring to send on is there to be looked at; what is put into it goes nowhere. */
	none = NETMAP_TXRING(t->nifp, 0);
	CHECK(t->nifp->ni_tx_rings == 1 && t->first_tx_ring == 0 && t->last_tx_ring == 0 && none->num_slots == 8);
	INDICES(none, 0, 0, 7);
	CHECK(!nm_tx_pending(none) && ioctl(t->fd, NIOCTXSYNC) == 0 && ask(t->fd, POLLOUT, 0) == 0);
	CHECK(monitor(argv[1], "t^") == NULL);

	/* Sent: /t and /rt see it, whatever becomes of it, and it is marked. */
	send_one(a->fd, at, 2, 1);
	CHECK(ask(t->fd, POLLIN, SOON) == POLLIN);
	INDICES(mt, 0, 0, 1);
	CHECK(same(mt, 0, 2, 1) && (mt->slot[0].flags & NS_TXMON) != 0);
	await(both->fd, mb, 1);
	CHECK((mb->slot[0].flags & NS_TXMON) != 0);
	CHECK(ask(r->fd, POLLIN, 0) == 0);
	INDICES(mr, 0, 0, 0);

	/* The rules of every ring: cur at tail waits for more, head gives back. */
	mt->cur = 1;
	CHECK(ask(t->fd, POLLIN, 0) == 0);
	INDICES(mt, 0, 1, 1);
	release(t->fd, mt);
	INDICES(mt, 1, 1, 1);
	await(b->fd, br, 1);
	release(b->fd, br);

	/* Received: /r and /rt see it, without the mark, and the port has it as ever. */
	send_one(b->fd, bt, 1, 2);
	CHECK(ask(r->fd, POLLIN, SOON) == POLLIN);
	INDICES(mr, 0, 0, 1);
	CHECK(same(mr, 0, 1, 2) && (mr->slot[0].flags & NS_TXMON) == 0);
	await(both->fd, mb, 2);
	await(a->fd, ar, 1);
	CHECK(same(ar, 0, 1, 2) && ask(t->fd, POLLIN, 0) == 0);
	release(r->fd, mr);
	release(both->fd, mb);

	/* What is dropped on the way to the port is not received: 7 of 10 arrive in its ring, of which one is in use. */
	for (i = 0; i < 10; i++)
		send_one(b->fd, bt, 1, 2);
	await(a->fd, ar, 7);
	await(r->fd, mr, 6);
	release(a->fd, ar);
	release(r->fd, mr);

	/* A slow monitor loses what does not fit, and no client waits for it. */
	for (i = 0; i < 10; i++)
		send_one(a->fd, at, 2, 1);
	await(t->fd, mt, 7);
	release(t->fd, mt);
	send_one(a->fd, at, 9, 1);
	await(t->fd, mt, 1);
	CHECK(same(mt, mt->head, 9, 1));

	/* Nonsense in a monitor's ring is the monitor's alone. */
	mt->head = 99;
	CHECK((ask(t->fd, POLLIN, 0) & POLLERR) != 0);
	nmport_close(r);

	/* The port may come and go. */
	nmport_close(a);
	CHECK((a = nmport_open(argv[1])) != NULL);
	release(t->fd, mt);
	send_one(a->fd, NETMAP_TXRING(a->nifp, 0), 7, 1);
	await(t->fd, mt, 1);
	CHECK(same(mt, mt->head, 7, 1));
	nmport_close(t);
	nmport_close(both);
	nmport_close(a);
	nmport_close(b);
	return failures != 0;
}
