/*
 * The older library, rings in twos, and libnetmap's single steps: head, cur and tail after every call. argv: ports A and B,
 * by plain names, on one switch, each with two pairs of rings of 8 slots.
 */
#define _GNU_SOURCE
#define NETMAP_WITH_LIBS
#include "check.h"

#include <libnetmap.h>
#include <stdlib.h>

static unsigned called, flagged;

static void
count(unsigned char *arg, const struct nm_pkthdr *hdr, const unsigned char *p)
{
	CHECK(arg == (unsigned char *)&called && hdr->buf == p && hdr->caplen == hdr->len);
	flagged += hdr->flags & NM_MORE_PKTS;
	called++;
}

/* The ring of the two that has something; waits until it has `want` slots. */
static struct netmap_ring *
filled(struct nm_desc *d, uint32_t want)
{
	struct netmap_ring *one = NETMAP_RXRING(d->nifp, 0), *two = NETMAP_RXRING(d->nifp, 1);

	while (nm_ring_space(one) + nm_ring_space(two) < want) {
		one->cur = one->tail;
		two->cur = two->tail;
		if (ask(d->fd, POLLIN, SOON) != POLLIN)
			break;
	}
	one->cur = one->head;
	two->cur = two->head;
	return nm_ring_empty(one) ? two : one;
}

static void
wait_for_all(struct nm_desc *d)
{
	drain(d->fd, NETMAP_TXRING(d->nifp, 0));
	drain(d->fd, NETMAP_TXRING(d->nifp, 1));
}

/* nm_open, nm_inject, nm_dispatch, nm_nextpkt, nm_close. */
static void
older(const char *a_name, const char *b_name)
{
	unsigned char frame[64] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 }, large[16384] = { 0 };
	struct nm_desc *a = nm_open(a_name, NULL, 0, NULL), *b = nm_open(b_name, NULL, 0, NULL), *c;
	struct netmap_ring *t0, *t1, *r;
	struct nm_pkthdr hdr;
	struct nmreq req = { .nr_arg3 = 5 };
	uint32_t at, i;

	CHECK(a != NULL && b != NULL);
	if (failures > 0)
		exit(1);
	CHECK(IS_NETMAP_DESC(a) && a->done_mmap && a->first_tx_ring == 0 && a->last_tx_ring == 1 && a->last_rx_ring == 1);
	CHECK(nm_mmap(a, NULL) == 0 && a->some_ring == NETMAP_RXRING(a->nifp, 0));
	t0 = NETMAP_TXRING(a->nifp, 0);
	t1 = NETMAP_TXRING(a->nifp, 1);
	CHECK((char *)a->buf_start == NETMAP_BUF(t0, 0));
	CHECK(NETMAP_BUF_IDX(t0, NETMAP_BUF(t0, t0->slot[3].buf_idx)) == t0->slot[3].buf_idx);
	/* A second descriptor maps nothing, and one by its bare name is the same port. */
	c = nm_open(a_name, NULL, NM_OPEN_NO_MMAP, a);
	CHECK(c != NULL && c->mem == a->mem && nm_close(c) == 0);
	snprintf(req.nr_name, sizeof(req.nr_name), "%s", a->req.nr_name);
	c = nm_open("netmap:", &req, NM_OPEN_IFNAME, NULL);
	CHECK(c != NULL && c->mem == a->mem && nm_close(c) == 0);
	/* `req` counts without a flag, and of a parent what the flags say; a parent's extra buffers only by NM_OPEN_ARG3. */
	nm_close(a);
	nm_close(b);
	CHECK((a = nm_open(a_name, &req, 0, NULL)) != NULL && a->req.nr_arg3 == 5);
	for (i = 0, at = a->nifp->ni_bufs_head; at != 0; at = *(uint32_t *)NETMAP_BUF(a->some_ring, at))
		i++;
	CHECK(i == 5);
	CHECK((b = nm_open(b_name, &req, NM_OPEN_ARG2, a)) != NULL && b->req.nr_arg3 == 0 && b->nifp->ni_bufs_head == 0);
	nm_close(b);
	CHECK((b = nm_open(b_name, NULL, NM_OPEN_ARG3, a)) != NULL && b->req.nr_arg3 == 5);
	nm_close(b);
	CHECK((c = nm_open("netmap:", NULL, NM_OPEN_IFNAME | NM_OPEN_ARG3, a)) != NULL && c->mem == a->mem &&
	    c->req.nr_arg3 == 0 && nm_close(c) == 0);
	nm_close(a);
	CHECK((a = nm_open(a_name, NULL, 0, NULL)) != NULL && (b = nm_open(b_name, NULL, 0, NULL)) != NULL);
	if (failures > 0)
		exit(1);
	t0 = NETMAP_TXRING(a->nifp, 0);
	t1 = NETMAP_TXRING(a->nifp, 1);
	CHECK(nm_open("netmap:", NULL, NM_OPEN_IFNAME, NULL) == NULL && errno == EINVAL);
	CHECK(nm_open("p", NULL, 0, NULL) == NULL && errno == EINVAL && nm_close(NULL) == EINVAL);

	/* nm_inject moves head and cur by the slots that it takes; nothing is gone before a sync. */
	CHECK(nm_inject(a, frame, 60) == 60);
	INDICES(t0, 1, 1, 7);
	for (i = 0; i < 6; i++)
		CHECK(nm_inject(a, frame, 60) == 60);
	INDICES(t0, 7, 7, 7);
	INDICES(t1, 0, 0, 7);
	/* The first ring is full: the second. A longer packet takes several slots, and what has no room is not taken. */
	memcpy(large, frame, 60);
	CHECK(nm_inject(a, large, 5000) == 5000);
	INDICES(t1, 3, 3, 7);
	CHECK(t1->slot[0].len == 2048 && t1->slot[1].flags == NS_MOREFRAG && t1->slot[2].len == 904);
	CHECK(t1->slot[2].flags == 0 && nm_inject(a, large, 5 * 2048) == 0 && nm_inject(a, large, 0) == 0);
	INDICES(t1, 3, 3, 7);
	CHECK(nm_inject(a, frame, 60) == 60);
	CHECK(ioctl(a->fd, NIOCTXSYNC) == 0);
	wait_for_all(a);
	INDICES(t0, 7, 7, 6);
	INDICES(t1, 4, 4, 3);

	/* The same flow is in the same ring: seven, and more have no room. nm_dispatch takes as many as it is told. */
	r = filled(b, 7);
	INDICES(r, 0, 0, 7);
	CHECK(nm_dispatch(b, 2, count, (unsigned char *)&called) == 2 && called == 2);
	INDICES(r, 2, 2, 7);
	CHECK(nm_nextpkt(b, &hdr) != NULL && hdr.len == 60 && hdr.slot == &r->slot[2] && hdr.d == b && hdr.flags == 0);
	INDICES(r, 3, 3, 7);
	CHECK(nm_dispatch(b, -1, count, (unsigned char *)&called) == 4 && called == 6 && flagged == 0);
	INDICES(r, 7, 7, 7);
	CHECK(nm_dispatch(b, 0, count, (unsigned char *)&called) == 0 && nm_nextpkt(b, &hdr) == NULL && hdr.slot == &r->slot[2]);
	CHECK(ioctl(b->fd, NIOCRXSYNC) == 0);
	INDICES(r, 7, 7, 7);

	/* The next one is in the next slot. */
	CHECK(nm_inject(a, large, 1500) == 1500 && ioctl(a->fd, NIOCTXSYNC) == 0);
	wait_for_all(a);
	r = filled(b, 1);
	at = r->head;
	CHECK(nm_dispatch(b, 0, count, (unsigned char *)&called) == 1 && called == 7);
	INDICES(r, (at + 1) % 8, (at + 1) % 8, (at + 1) % 8);

	/* The time of the sync: of one that has something to show as ever, of others if the program wants it. */
	CHECK(r->ts.tv_sec != 0);
	memset(&r->ts, 0, sizeof(r->ts));
	CHECK(ioctl(b->fd, NIOCRXSYNC) == 0 && r->ts.tv_sec == 0);
	r->flags |= NR_TIMESTAMP;
	CHECK(ioctl(b->fd, NIOCRXSYNC) == 0 && r->ts.tv_sec != 0);
	/* Asked for and not heard of: no effect, as VALE's ports have none. */
	at = t0->head;
	put(t0, at, 2, 1, NS_REPORT);
	t0->head = t0->cur = nm_ring_next(t0, at);
	CHECK(ioctl(a->fd, NIOCTXSYNC) == 0);
	wait_for_all(a);
	r = filled(b, 1);
	release(b->fd, r);

	/* Copies of whole lines. */
	nm_pkt_copy(frame, large + 8192, 60);
	CHECK(memcmp(large + 8192, frame, 60) == 0);
	CHECK(nm_close(a) == 0 && nm_close(b) == 0);
}

/* poll on descriptors of two rings, of one, and without sending. */
static void
several_rings(const char *a_name, const char *b_name)
{
	struct nmport_d *a = nmport_open(a_name), *b = nmport_open(b_name), *one, *quiet;
	struct netmap_ring *at, *t1, *r[2];
	char name[64];
	unsigned char src;
	uint32_t before;

	CHECK(a != NULL && b != NULL && b->last_rx_ring == 1);
	if (failures > 0)
		exit(1);
	at = NETMAP_TXRING(a->nifp, 0);
	t1 = NETMAP_TXRING(a->nifp, 1);
	r[0] = NETMAP_RXRING(b->nifp, 0);
	r[1] = NETMAP_RXRING(b->nifp, 1);

	/* POLLOUT as long as one of the rings has room beyond cur. */
	CHECK(ask(a->fd, POLLOUT, 0) == POLLOUT);
	at->cur = at->tail;
	CHECK(ask(a->fd, POLLOUT, 0) == POLLOUT);
	t1->cur = t1->tail;
	CHECK(ask(a->fd, POLLOUT, 0) == 0);
	INDICES(at, 0, 7, 7);
	INDICES(t1, 0, 7, 7);
	at->cur = 0;
	CHECK(ask(a->fd, POLLOUT | POLLIN, 0) == POLLOUT);
	t1->cur = 0;

	/* Flows until both of the receiver's rings have one: POLLIN as long as one has something beyond cur. */
	for (src = 10; nm_ring_empty(r[0]) || nm_ring_empty(r[1]); src++) {
		send_one(a->fd, at, 9, src);
		CHECK(ask(b->fd, POLLIN, SOON) == POLLIN);
		r[0]->cur = r[0]->tail;
		r[1]->cur = r[1]->tail;
		if (failures > 0 || src == 40)
			exit(1);
	}
	CHECK(ask(b->fd, POLLIN, 0) == 0);
	r[0]->cur = r[0]->head;
	CHECK(ask(b->fd, POLLIN, 0) == POLLIN);
	r[0]->cur = r[0]->tail;
	r[1]->cur = r[1]->head;
	CHECK(ask(b->fd, POLLIN, 0) == POLLIN);

	/* A descriptor of ring 1 knows of no other: it sees what is there, and its sync moves nothing else. */
	snprintf(name, sizeof(name), "%s-1", b_name);
	CHECK((one = nmport_open(name)) != NULL && one->first_rx_ring == 1 && one->last_rx_ring == 1);
	if (failures > 0)
		exit(1);
	release(one->fd, r[1]);
	INDICES(r[1], r[1]->tail, r[1]->tail, r[1]->tail);
	CHECK(nm_ring_space(r[0]) > 0 && ask(one->fd, POLLIN, 0) == 0);
	before = r[0]->tail;
	do {
		send_one(a->fd, at, 9, src);
		CHECK(ask(one->fd, POLLIN, 20) == 0 || nm_ring_space(r[1]) == 1);
	} while (nm_ring_empty(r[1]) && failures == 0 && ++src < 80);
	CHECK(nm_ring_space(r[1]) == 1 && r[0]->tail == before);
	CHECK(ioctl(b->fd, NIOCRXSYNC) == 0);
	release(b->fd, r[0]);
	nmport_close(one);
	nmport_close(a);

	/* With NO_TX_POLL, what is to be sent stays until it is synced, or POLLOUT asked for. */
	CHECK((quiet = nmport_prepare(a_name)) != NULL);
	quiet->reg.nr_flags |= NR_NO_TX_POLL;
	CHECK(nmport_open_desc(quiet) == 0);
	at = NETMAP_TXRING(quiet->nifp, 0);
	INDICES(at, 0, 0, 7);
	put(at, 0, 9, 1, 0);
	at->head = at->cur = 1;
	for (src = 0; src < 20; src++)
		CHECK(ask(quiet->fd, POLLIN, 1) == 0);
	INDICES(at, 1, 1, 7);
	CHECK(ask(quiet->fd, POLLOUT, 0) == POLLOUT);
	drain(quiet->fd, at);
	INDICES(at, 1, 1, 0);
	nmport_undo_open_desc(quiet);
	nmport_undo_prepare(quiet);
	nmport_close(b);
}

/* libnetmap's calls one by one. */
static void
single_steps(const char *name)
{
	struct nmport_d *d = nmport_new(), *c;
	struct nmctx *ctx = nmctx_get();
	const char *bare = name;
	void *some;

	CHECK(d != NULL && d->fd == -1 && nmport_parse(d, name) == 0 && d->reg.nr_mode == NR_REG_ALL_NIC);
	CHECK(nmport_mmap(d) < 0 && errno == EINVAL);
	CHECK(nmport_register(d) == 0 && d->register_done && d->fd >= 0 && d->reg.nr_tx_slots == 8);
	CHECK(nmport_register(d) < 0 && errno == EINVAL);
	CHECK(nmport_mmap(d) == 0 && d->mmap_done && d->last_tx_ring == 1 && NETMAP_TXRING(d->nifp, 1)->num_slots == 8);
	INDICES(NETMAP_TXRING(d->nifp, 1), 0, 0, 7);
	CHECK(nmport_inject(d, "aaaaaabbbbbbcc", 14) == 14);
	INDICES(NETMAP_TXRING(d->nifp, 0), 1, 1, 7);
	CHECK((c = nmport_clone(d)) != NULL && nmport_open_desc(c) == 0 && c->mem == d->mem);
	nmport_close(c);
	CHECK(nmreq_get_mem_id(&bare, ctx) == d->reg.nr_mem_id);
	nmport_undo_mmap(d);
	CHECK(!d->mmap_done && d->nifp == NULL);
	nmport_undo_register(d);
	CHECK(!d->register_done && d->fd == -1);
	nmport_undo_parse(d);
	CHECK(d->hdr.nr_name[0] == '\0');
	/* Parsed anew and opened again, it is as at first. */
	CHECK(nmport_parse(d, name) == 0 && nmport_open_desc(d) == 0);
	INDICES(NETMAP_TXRING(d->nifp, 0), 0, 0, 7);
	nmport_undo_open_desc(d);
	CHECK(nmport_extmem_from_file(d, "/tmp/x") < 0 && errno == EOPNOTSUPP);
	nmport_undo_parse(d);
	nmport_delete(d);
	nmport_disable_option("conf");
	CHECK(nmport_prepare("vale0:a@conf:slots=8") == NULL);
	CHECK(nmport_enable_option("conf") == 0);
	CHECK((some = nmctx_malloc(ctx, 10)) != NULL);
	nmctx_free(ctx, some);
	nmctx_lock(ctx);
	nmctx_unlock(ctx);
	nmctx_ferror(ctx, "%s", "(this line is the test's)");
}

/* A port that is memory alone, and extra buffers. */
static void
memory_alone(const char *name)
{
	struct nmport_d *d = nmport_new();
	struct netmap_ring *t;
	uint32_t buf, n;

	CHECK(d != NULL && nmport_parse(d, "netmap:whatever") == 0);
	d->reg.nr_mode = NR_REG_NULL;
	d->reg.nr_tx_rings = 10;
	d->reg.nr_rx_rings = 5;
	d->reg.nr_tx_slots = 256;
	d->reg.nr_mem_id = 1;
	d->reg.nr_extra_bufs = 3;
	CHECK(nmport_open_desc(d) == 0 && d->reg.nr_tx_rings == 10 && d->reg.nr_rx_rings == 5 && d->reg.nr_mem_id == 1);
	if (failures > 0)
		exit(1);
	CHECK(d->reg.nr_tx_slots == 256 && d->reg.nr_extra_bufs == 3 && d->nifp->ni_tx_rings == 10);
	CHECK(d->nifp->ring_ofs[0] == 0 && d->nifp->ring_ofs[16] == 0);
	CHECK(ioctl(d->fd, NIOCTXSYNC) == 0 && ioctl(d->fd, NIOCRXSYNC) == 0 && ask(d->fd, POLLIN | POLLOUT, 0) == 0);
	nmport_close(d);

	/* As many extra buffers as asked for, each naming the next; they are the first descriptor's. */
	CHECK((d = nmport_prepare(name)) != NULL);
	d->reg.nr_extra_bufs = 20;
	CHECK(nmport_open_desc(d) == 0 && d->reg.nr_extra_bufs == 20);
	t = NETMAP_TXRING(d->nifp, 0);
	for (n = 0, buf = d->nifp->ni_bufs_head; buf != 0 && n < 100; n++)
		memcpy(&buf, NETMAP_BUF(t, buf), sizeof(buf));
	CHECK(n == 20);
	nmport_close(d);
	CHECK((d = nmport_open(name)) != NULL && d->reg.nr_extra_bufs == 0 && d->nifp->ni_bufs_head == 0);
	nmport_close(d);
}

int
main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	older(argv[1], argv[2]);
	several_rings(argv[1], argv[2]);
	single_steps(argv[1]);
	memory_alone(argv[1]);
	return failures != 0;
}
