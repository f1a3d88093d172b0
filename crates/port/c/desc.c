/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The calls of netmap's older library: nm_open and its like. */
#include "nm.h"

#include <libnetmap.h>

/* Members that are const for programs. */
#define SET(member, value) memcpy((void *)(uintptr_t)&(member), &(value), sizeof(value))

/* Puts into `d` where everything is that its request names; the memory is mapped already. */
static void
describe(struct nm_desc *d, struct nm_file *f)
{
	struct netmap_if *nifp = NETMAP_IF(f->port->ring.base, d->req.nr_offset);
	struct netmap_ring *some = NETMAP_RXRING(f->port->nifp, 0);
	void *start = NETMAP_BUF(some, 0);
	void *end = f->port->ring.base + f->port->ring.info.memsize;

	d->mem = f->port->ring.base;
	d->memsize = f->port->ring.info.memsize;
	d->done_mmap = 1;
	SET(d->nifp, nifp);
	SET(d->some_ring, some);
	SET(d->buf_start, start);
	SET(d->buf_end, end);
}

/*
 * What is asked for: `req` is the start, and the flags say what a parent has instead; a parent from which no extra buffers
 * are taken over means none. Rings and flags of the name are added, and its memory's number, if it has one, counts.
 */
static int
decide(const char *ifname, const struct nmreq *req, uint64_t flags, const struct nm_desc *parent,
    struct nmreq_header *hdr, struct nmreq_register *reg)
{
	struct nmreq base = { .nr_version = NETMAP_API }, named;
	const char *rest = ifname;

	if (req != NULL)
		base = *req;
	if (IS_NETMAP_DESC(parent) && flags != 0) {
		if (flags & NM_OPEN_ARG1)
			base.nr_arg1 = parent->req.nr_arg1;
		if (flags & NM_OPEN_ARG2)
			base.nr_arg2 = parent->req.nr_arg2;
		base.nr_arg3 = flags & NM_OPEN_ARG3 ? parent->req.nr_arg3 : 0;
		if (flags & NM_OPEN_RING_CFG) {
			base.nr_tx_slots = parent->req.nr_tx_slots;
			base.nr_rx_slots = parent->req.nr_rx_slots;
			base.nr_tx_rings = parent->req.nr_tx_rings;
			base.nr_rx_rings = parent->req.nr_rx_rings;
		}
		if (flags & NM_OPEN_IFNAME) {
			memcpy(base.nr_name, parent->req.nr_name, sizeof(base.nr_name));
			base.nr_ringid = parent->req.nr_ringid;
			base.nr_flags = parent->req.nr_flags;
		}
	}
	named = base;
	named.nr_cmd = 0;
	nm_modern(&named, hdr->nr_name, reg);
	if (flags & NM_OPEN_IFNAME) {
		if (hdr->nr_name[0] == '\0') {
			errno = EINVAL;
			return -1;
		}
	} else {
		struct nmreq_register name = { 0 };

		memset(hdr->nr_name, 0, sizeof(hdr->nr_name));
		if (nmreq_header_decode(&rest, hdr, nmctx_get()) < 0 ||
		    nmreq_register_decode(&rest, &name, nmctx_get()) < 0)
			return -1;
		if (*rest != '\0') {
			errno = EINVAL;
			return -1;
		}
		reg->nr_mode = name.nr_mode;
		reg->nr_ringid = name.nr_ringid;
		reg->nr_flags |= name.nr_flags;
		if (name.nr_mem_id != 0)
			reg->nr_mem_id = name.nr_mem_id;
	}
	if (flags & NETMAP_NO_TX_POLL)
		reg->nr_flags |= NR_NO_TX_POLL;
	if (flags & NETMAP_DO_RX_POLL)
		reg->nr_flags |= NR_DO_RX_POLL;
	return 0;
}

struct nm_desc *
nm_open(const char *ifname, const struct nmreq *req, uint64_t flags, const struct nm_desc *parent)
{
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nm_desc *d;
	struct nm_file *f;

	nmreq_header_init(&hdr, NETMAP_REQ_REGISTER, &reg);
	if (decide(ifname, req, flags, parent, &hdr, &reg) < 0)
		return NULL;
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		return NULL;
	d->fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (d->fd < 0 || ioctl(d->fd, NIOCCTRL, &hdr) < 0) {
		int saved = errno;

		D("%s: %s", ifname, nm_why(saved));
		if (d->fd >= 0)
			close(d->fd);
		free(d);
		errno = saved;
		return NULL;
	}
	f = nm_file(d->fd);
	d->self = d;
	memcpy(d->req.nr_name, hdr.nr_name, sizeof(d->req.nr_name) - 1);
	d->req.nr_offset = (uint32_t)reg.nr_offset;
	d->req.nr_version = NETMAP_API;
	d->req.nr_memsize = (uint32_t)reg.nr_memsize;
	d->req.nr_tx_slots = reg.nr_tx_slots;
	d->req.nr_rx_slots = reg.nr_rx_slots;
	d->req.nr_tx_rings = reg.nr_tx_rings;
	d->req.nr_rx_rings = reg.nr_rx_rings;
	d->req.nr_ringid = reg.nr_ringid;
	d->req.nr_arg2 = reg.nr_mem_id;
	d->req.nr_arg3 = reg.nr_extra_bufs;
	d->req.nr_flags = reg.nr_mode | (uint32_t)(reg.nr_flags & ~(uint64_t)NR_REG_MASK);
	d->first_tx_ring = d->cur_tx_ring = f->first_tx;
	d->last_tx_ring = (uint16_t)(f->last_tx > f->first_tx ? f->last_tx - 1 : f->first_tx);
	d->first_rx_ring = d->cur_rx_ring = f->first_rx;
	d->last_rx_ring = (uint16_t)(f->last_rx > f->first_rx ? f->last_rx - 1 : f->first_rx);
	describe(d, f);
	return d;
}

/* One that was opened is mapped from the start, where all descriptors of a region share the mapping; one whose descriptor came
 * from another process is mapped here. */
int
nm_mmap(struct nm_desc *d, const struct nm_desc *parent)
{
	struct nm_file *f;

	(void)parent;
	if (d->done_mmap)
		return 0;
	f = nm_file_or_passed(d->fd);
	if (f == NULL || f->port == NULL)
		return EINVAL;
	describe(d, f);
	return 0;
}

int
nm_close(struct nm_desc *d)
{
	if (!IS_NETMAP_DESC(d))
		return EINVAL;
	close(d->fd);
	free(d);
	return 0;
}

int
nm_inject(struct nm_desc *d, const void *buf, size_t size)
{
	unsigned count = (unsigned)d->last_tx_ring - d->first_tx_ring + 1u, i;

	for (i = 0; i < count; i++) {
		uint16_t ring = (uint16_t)(d->first_tx_ring + (d->cur_tx_ring - d->first_tx_ring + i) % count);

		if (nm_put(NETMAP_TXRING(d->nifp, ring), buf, size)) {
			d->cur_tx_ring = ring;
			return (int)size;
		}
	}
	return 0;
}

/* The next slot that was received, from the current ring on; its ring moves on by it. */
static uint8_t *
next_slot(struct nm_desc *d, struct nm_pkthdr *hdr)
{
	unsigned count = (unsigned)d->last_rx_ring - d->first_rx_ring + 1u, i;

	for (i = 0; i < count; i++) {
		uint16_t number = (uint16_t)(d->first_rx_ring + (d->cur_rx_ring - d->first_rx_ring + i) % count);
		struct netmap_ring *ring = NETMAP_RXRING(d->nifp, number);
		/* Once: memory that is taken away with its port reads as zeros, from one moment to the next. */
		uint32_t n = *(const volatile uint32_t *)&ring->num_slots, head = *(volatile uint32_t *)&ring->head;
		struct netmap_slot *slot;

		if (head >= n || head == *(volatile uint32_t *)&ring->tail)
			continue;
		slot = &ring->slot[head];
		hdr->ts = ring->ts;
		hdr->len = hdr->caplen = slot->len;
		hdr->flags = slot->flags & NS_MOREFRAG ? NM_MORE_PKTS : 0;
		hdr->d = d;
		hdr->slot = slot;
		hdr->buf = (uint8_t *)NETMAP_BUF(ring, slot->buf_idx);
		ring->head = ring->cur = head + 1 == n ? 0 : head + 1;
		d->cur_rx_ring = number;
		return hdr->buf;
	}
	return NULL;
}

unsigned char *
nm_nextpkt(struct nm_desc *d, struct nm_pkthdr *hdr)
{
	return next_slot(d, hdr);
}

int
nm_dispatch(struct nm_desc *d, int cnt, nm_cb_t cb, unsigned char *arg)
{
	int got;

	for (got = 0; cnt <= 0 || got < cnt; got++) {
		uint8_t *buf = next_slot(d, &d->hdr);

		if (buf == NULL)
			break;
		cb(arg, &d->hdr, buf);
	}
	return got;
}
