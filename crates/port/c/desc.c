/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The calls of netmap's older library: nm_open and its like. */
#define NETMAP_WITH_LIBS
#include "nm.h"
#include "name.h"

#include <errno.h>
#include <net/netmap_user.h>
#include <stdlib.h>

/* Members that are const for programs. */
#define SET(member, value) memcpy((void *)(uintptr_t)&(member), &(value), sizeof(value))

struct nm_desc *
nm_open(const char *ifname, const struct nmreq *req, uint64_t flags, const struct nm_desc *arg)
{
	char name[NETMAP_REQ_IFNAMSIZ];
	struct nmreq_register reg;
	struct netmap_ring *some;
	struct nm_desc *d;
	struct nm_file *f;
	const char *why = nm_parse_name(ifname, name, &reg);
	void *start, *end;

	(void)arg; /* memory is mapped once for each port anyway */
	if (why != NULL) {
		D("%s: %s", ifname, why);
		errno = EINVAL;
		return NULL;
	}
	if (flags & (NM_OPEN_ARG1 | NM_OPEN_ARG2 | NM_OPEN_ARG3 | NM_OPEN_RING_CFG)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (req != NULL) {
		if (req->nr_ringid & NETMAP_NO_TX_POLL)
			reg.nr_flags |= NR_NO_TX_POLL;
		reg.nr_flags |= req->nr_flags & ~(uint32_t)NR_REG_MASK;
	}
	if (flags & NETMAP_NO_TX_POLL)
		reg.nr_flags |= NR_NO_TX_POLL;
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		return NULL;
	d->fd = nm_bind(name, &reg, &f);
	if (d->fd < 0) {
		free(d);
		return NULL;
	}
	d->self = d;
	d->mem = f->port->ring.base;
	d->memsize = reg.nr_memsize;
	d->done_mmap = 1;
	memcpy(d->req.nr_name, name, sizeof(d->req.nr_name) - 1);
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
	some = NETMAP_RXRING(f->port->nifp, 0);
	start = NETMAP_BUF(some, 0);
	end = f->port->ring.base + reg.nr_memsize;
	SET(d->nifp, f->port->nifp);
	SET(d->some_ring, some);
	SET(d->buf_start, start);
	SET(d->buf_end, end);
	return d;
}

int
nm_close(struct nm_desc *d)
{
	if (!IS_NETMAP_DESC(d))
		return EINVAL;
	nm_unbind(d->fd);
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
		struct netmap_slot *slot;

		if (nm_ring_empty(ring))
			continue;
		slot = &ring->slot[ring->head];
		hdr->ts = ring->ts;
		hdr->len = hdr->caplen = slot->len;
		hdr->flags = slot->flags & NS_MOREFRAG ? NM_MORE_PKTS : 0;
		hdr->d = d;
		hdr->slot = slot;
		hdr->buf = (uint8_t *)NETMAP_BUF(ring, slot->buf_idx);
		ring->head = ring->cur = nm_ring_next(ring, ring->head);
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
