/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The port calls of libnetmap: names, steps of opening, injection. */
#define NETMAP_WITH_LIBS
#include "nm.h"
#include "name.h"

#include <errno.h>
#include <libnetmap.h>
#include <net/netmap_user.h>
#include <stdlib.h>

static void
complain(const char *name, const char *why)
{
	fprintf(stderr, "netmap port \"%s\": %s\n", name, why);
}

struct nmport_d *
nmport_prepare(const char *portspec)
{
	struct nmport_d *d = calloc(1, sizeof(*d));
	const char *why;

	if (d == NULL)
		return NULL;
	d->fd = -1;
	d->hdr.nr_version = NETMAP_API;
	d->hdr.nr_reqtype = NETMAP_REQ_REGISTER;
	d->hdr.nr_body = (uint64_t)(uintptr_t)&d->reg;
	why = nm_parse_name(portspec, d->hdr.nr_name, &d->reg);
	if (why != NULL) {
		complain(portspec, why);
		free(d);
		errno = EINVAL;
		return NULL;
	}
	return d;
}

int
nmport_open_desc(struct nmport_d *d)
{
	struct nm_file *f;
	int fd = nm_bind(d->hdr.nr_name, &d->reg, &f);

	if (fd < 0) {
		complain(d->hdr.nr_name, strerror(errno));
		return -1;
	}
	d->fd = fd;
	d->register_done = d->mmap_done = 1;
	d->nifp = f->port->nifp;
	/* Ports with the same memory have the same address here: programs tell by that whether they may swap buffers. */
	d->mem = (struct nmem_d *)(void *)f->port->ring.base;
	d->first_tx_ring = d->cur_tx_ring = f->first_tx;
	d->last_tx_ring = (uint16_t)(f->last_tx > f->first_tx ? f->last_tx - 1 : f->first_tx);
	d->first_rx_ring = d->cur_rx_ring = f->first_rx;
	d->last_rx_ring = (uint16_t)(f->last_rx > f->first_rx ? f->last_rx - 1 : f->first_rx);
	return 0;
}

void
nmport_undo_open_desc(struct nmport_d *d)
{
	if (d->fd >= 0)
		nm_unbind(d->fd);
	d->fd = -1;
	d->register_done = d->mmap_done = 0;
	d->nifp = NULL;
	d->mem = NULL;
}

void
nmport_undo_prepare(struct nmport_d *d)
{
	free(d);
}

struct nmport_d *
nmport_open(const char *portspec)
{
	struct nmport_d *d = nmport_prepare(portspec);

	if (d != NULL && nmport_open_desc(d) < 0) {
		int saved = errno;

		nmport_undo_prepare(d);
		errno = saved;
		return NULL;
	}
	return d;
}

void
nmport_close(struct nmport_d *d)
{
	nmport_undo_open_desc(d);
	nmport_undo_prepare(d);
}

struct nmport_d *
nmport_clone(struct nmport_d *d)
{
	struct nmport_d *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return NULL;
	c->fd = -1;
	c->hdr = d->hdr;
	c->reg = d->reg;
	c->hdr.nr_body = (uint64_t)(uintptr_t)&c->reg;
	return c;
}

/* Puts a packet into the free slots of a ring; whether it fitted. */
int
nm_put(struct netmap_ring *ring, const void *buf, size_t size)
{
	uint32_t room = ring->nr_buf_size < UINT16_MAX ? ring->nr_buf_size : UINT16_MAX;
	size_t slots = (size + room - 1) / room;
	uint32_t at = ring->head;

	if (size == 0 || slots > NETMAP_MAX_FRAGS || slots > nm_ring_space(ring))
		return 0;
	while (size > 0) {
		struct netmap_slot *slot = &ring->slot[at];
		size_t part = size < room ? size : room;

		memcpy(NETMAP_BUF(ring, slot->buf_idx), buf, part);
		slot->len = (uint16_t)part;
		size -= part;
		slot->flags = size > 0 ? NS_MOREFRAG : 0;
		buf = (const char *)buf + part;
		at = nm_ring_next(ring, at);
	}
	ring->head = ring->cur = at;
	return 1;
}

int
nmport_inject(struct nmport_d *d, const void *buf, size_t size)
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
