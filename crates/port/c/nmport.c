/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The port calls of libnetmap: names, steps of opening, injection. */
#include "nm.h"

#include <libnetmap.h>

/* What a name may ask for behind '@'. Rings and slots count for ports that are made on demand. */
static int
take_conf(struct nmreq_parse_ctx *p)
{
	struct nmport_d *d = p->token;
	unsigned long values[9] = { 0 };
	int i;

	for (i = 0; i < 9; i++) {
		char *end = NULL;

		if (p->keys[i] != NULL)
			values[i] = strtoul(p->keys[i], &end, 0);
		if (end != NULL && (*end != '\0' || values[i] > UINT16_MAX)) {
			nmctx_ferror(p->ctx, "@conf: \"%s\" is no possible number", p->keys[i]);
			errno = EINVAL;
			return -1;
		}
	}
#define EITHER(one, both) ((one) != 0 ? (one) : (both))
	d->reg.nr_tx_rings = (uint16_t)EITHER(values[1], values[0]);
	d->reg.nr_rx_rings = (uint16_t)EITHER(values[2], values[0]);
	d->reg.nr_host_tx_rings = (uint16_t)EITHER(values[4], values[3]);
	d->reg.nr_host_rx_rings = (uint16_t)EITHER(values[5], values[3]);
	d->reg.nr_tx_slots = (uint32_t)EITHER(values[7], values[6]);
	d->reg.nr_rx_slots = (uint32_t)EITHER(values[8], values[6]);
	return 0;
}

static int
take_share(struct nmreq_parse_ctx *p)
{
	struct nmport_d *d = p->token;
	const char *name = p->keys[0];
	int32_t id = nmreq_get_mem_id(&name, p->ctx);

	if (id < 0)
		return -1;
	if (*name != '\0' || (d->reg.nr_mem_id != 0 && d->reg.nr_mem_id != id)) {
		nmctx_ferror(p->ctx, "@share: the name goes on, or another memory is asked for, too");
		errno = EINVAL;
		return -1;
	}
	d->reg.nr_mem_id = (uint16_t)id;
	return 0;
}

static int
refuse_option(struct nmreq_parse_ctx *p)
{
	nmctx_ferror(p->ctx, "this option is not possible: memory is the daemon's, and buffers start at their start");
	errno = EOPNOTSUPP;
	return -1;
}

static struct nmreq_opt_parser offset = { .prefix = "offset", .parse = refuse_option, .default_key = 0, .nr_keys = 2,
	.flags = NMREQ_OPTF_DISABLED, .keys = { { .key = "initial", .id = 0 }, { .key = "bits", .id = 1 } } };
static struct nmreq_opt_parser extmem = { .prefix = "extmem", .parse = refuse_option, .default_key = 0, .nr_keys = 7,
	.flags = NMREQ_OPTF_ALLOWEMPTY, .next = &offset,
	.keys = { { .key = "file", .id = 0 }, { .key = "if-num", .id = 1 }, { .key = "if-size", .id = 2 },
		{ .key = "ring-num", .id = 3 }, { .key = "ring-size", .id = 4 }, { .key = "buf-num", .id = 5 },
		{ .key = "buf-size", .id = 6 } } };
static struct nmreq_opt_parser share = { .prefix = "share", .parse = take_share, .default_key = 0, .nr_keys = 1,
	.next = &extmem, .keys = { { .key = "port", .id = 0, .flags = NMREQ_OPTK_MUSTSET } } };
static struct nmreq_opt_parser conf = { .prefix = "conf", .parse = take_conf, .default_key = 0, .nr_keys = 9,
	.next = &share,
	.keys = { { .key = "rings", .id = 0 }, { .key = "tx-rings", .id = 1 }, { .key = "rx-rings", .id = 2 },
		{ .key = "host-rings", .id = 3 }, { .key = "host-tx-rings", .id = 4 }, { .key = "host-rx-rings", .id = 5 },
		{ .key = "slots", .id = 6 }, { .key = "tx-slots", .id = 7 }, { .key = "rx-slots", .id = 8 } } };

static int
switch_option(const char *name, int on)
{
	struct nmreq_opt_parser *p;

	for (p = &conf; p != NULL; p = p->next) {
		if (strcmp(p->prefix, name) == 0) {
			p->flags = on ? p->flags & ~NMREQ_OPTF_DISABLED : p->flags | NMREQ_OPTF_DISABLED;
			return 0;
		}
	}
	errno = EOPNOTSUPP;
	return -1;
}

int
nmport_enable_option(const char *opt)
{
	return switch_option(opt, 1);
}

void
nmport_disable_option(const char *opt)
{
	switch_option(opt, 0);
}

struct nmport_d *
nmport_new(void)
{
	struct nmctx *ctx = nmctx_get();
	struct nmport_d *d = nmctx_malloc(ctx, sizeof(*d));

	if (d == NULL)
		return NULL;
	memset(d, 0, sizeof(*d));
	nmreq_header_init(&d->hdr, NETMAP_REQ_REGISTER, &d->reg);
	d->ctx = ctx;
	d->fd = -1;
	return d;
}

void
nmport_delete(struct nmport_d *d)
{
	nmctx_free(d->ctx, d);
}

int
nmport_parse(struct nmport_d *d, const char *portspec)
{
	const char *rest = portspec;

	if (nmreq_header_decode(&rest, &d->hdr, d->ctx) == 0 && nmreq_register_decode(&rest, &d->reg, d->ctx) == 0 &&
	    nmreq_options_decode(rest, &conf, d, d->ctx) == 0)
		return 0;
	nmport_undo_parse(d);
	return -1;
}

void
nmport_undo_parse(struct nmport_d *d)
{
	nmreq_free_options(&d->hdr);
	memset(&d->reg, 0, sizeof(d->reg));
	memset(d->hdr.nr_name, 0, sizeof(d->hdr.nr_name));
}

int
nmport_register(struct nmport_d *d)
{
	int saved;

	if (d->register_done) {
		errno = EINVAL;
		nmctx_ferror(d->ctx, "port \"%s\" is registered already", d->hdr.nr_name);
		return -1;
	}
	d->fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (d->fd < 0 || ioctl(d->fd, NIOCCTRL, &d->hdr) < 0) {
		saved = errno;
		nmctx_ferror(d->ctx, "port \"%s\": %s", d->hdr.nr_name, nm_why(saved));
		nmport_undo_register(d);
		errno = saved;
		return -1;
	}
	d->register_done = 1;
	return 0;
}

void
nmport_undo_register(struct nmport_d *d)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	d->register_done = 0;
}

/* First and last of the `count` rings from `ofs` on that the descriptor has. */
static void
bounds(const ssize_t *ofs, uint32_t count, uint16_t *first, uint16_t *last)
{
	uint16_t i;

	for (i = 0; i + 1u < count && ofs[i] == 0; i++)
		;
	*first = *last = i;
	for (; i < count; i++) {
		if (ofs[i] != 0)
			*last = i;
	}
}

int
nmport_mmap(struct nmport_d *d)
{
	struct nm_file *f = nm_file_or_passed(d->fd);
	struct nmctx *ctx = d->ctx;
	struct nmem_d *m;
	uint32_t txs;

	if (!d->register_done || d->mmap_done || f == NULL) {
		errno = EINVAL;
		nmctx_ferror(ctx, "port \"%s\" is not registered, or mapped already", d->hdr.nr_name);
		return -1;
	}
	nmctx_lock(ctx);
	/* A region is mapped where the port has it; a daemon that was started again may use its number anew. */
	for (m = ctx->mem_descs; m != NULL; m = m->next) {
		if (m->mem_id == d->reg.nr_mem_id && m->mem == f->port->ring.base)
			break;
	}
	if (m == NULL) {
		m = nmctx_malloc(ctx, sizeof(*m));
		if (m == NULL) {
			nmctx_unlock(ctx);
			return -1;
		}
		*m = (struct nmem_d){ .mem_id = d->reg.nr_mem_id, .mem = f->port->ring.base,
			.size = d->reg.nr_memsize, .next = ctx->mem_descs };
		if (m->next != NULL)
			m->next->prev = m;
		ctx->mem_descs = m;
	}
	m->refcount++;
	nmctx_unlock(ctx);
	d->mem = m;
	d->nifp = NETMAP_IF(m->mem, d->reg.nr_offset);
	txs = d->nifp->ni_tx_rings + d->nifp->ni_host_tx_rings;
	bounds(d->nifp->ring_ofs, txs, &d->first_tx_ring, &d->last_tx_ring);
	bounds(d->nifp->ring_ofs + txs, d->nifp->ni_rx_rings + d->nifp->ni_host_rx_rings, &d->first_rx_ring,
	    &d->last_rx_ring);
	d->cur_tx_ring = d->first_tx_ring;
	d->cur_rx_ring = d->first_rx_ring;
	d->mmap_done = 1;
	return 0;
}

void
nmport_undo_mmap(struct nmport_d *d)
{
	struct nmem_d *m = d->mem;

	if (m != NULL) {
		nmctx_lock(d->ctx);
		if (--m->refcount == 0) {
			if (m->next != NULL)
				m->next->prev = m->prev;
			if (m->prev != NULL)
				m->prev->next = m->next;
			else
				d->ctx->mem_descs = m->next;
			nmctx_free(d->ctx, m);
		}
		nmctx_unlock(d->ctx);
	}
	d->mem = NULL;
	d->nifp = NULL;
	d->mmap_done = 0;
}

struct nmport_d *
nmport_prepare(const char *portspec)
{
	struct nmport_d *d = nmport_new();

	if (d != NULL && nmport_parse(d, portspec) < 0) {
		int saved = errno;

		nmport_delete(d);
		errno = saved;
		return NULL;
	}
	return d;
}

void
nmport_undo_prepare(struct nmport_d *d)
{
	nmport_undo_parse(d);
	nmport_delete(d);
}

int
nmport_open_desc(struct nmport_d *d)
{
	if (nmport_register(d) < 0)
		return -1;
	if (nmport_mmap(d) < 0) {
		nmport_undo_register(d);
		return -1;
	}
	return 0;
}

void
nmport_undo_open_desc(struct nmport_d *d)
{
	nmport_undo_mmap(d);
	nmport_undo_register(d);
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
	if (d == NULL)
		return;
	nmport_undo_open_desc(d);
	nmport_undo_prepare(d);
}

struct nmport_d *
nmport_clone(struct nmport_d *d)
{
	struct nmport_d *c;

	if (d->hdr.nr_options != 0) {
		errno = EINVAL;
		nmctx_ferror(d->ctx, "port \"%s\": a request with options cannot be cloned", d->hdr.nr_name);
		return NULL;
	}
	c = nmport_new();
	if (c == NULL)
		return NULL;
	memcpy(c->hdr.nr_name, d->hdr.nr_name, sizeof(c->hdr.nr_name));
	c->reg = d->reg;
	c->ctx = d->ctx;
	return c;
}

static int
impossible(struct nmport_d *d, const char *what)
{
	errno = EOPNOTSUPP;
	nmctx_ferror(d->ctx, "port \"%s\": %s is not possible here", d->hdr.nr_name, what);
	return -1;
}

int
nmport_extmem(struct nmport_d *d, void *base, size_t size)
{
	(void)base;
	(void)size;
	return impossible(d, "memory of the program's own");
}

int
nmport_extmem_from_file(struct nmport_d *d, const char *fname)
{
	(void)fname;
	return impossible(d, "memory of the program's own");
}

struct nmreq_pools_info *
nmport_extmem_getinfo(struct nmport_d *d)
{
	(void)d;
	return NULL;
}

int
nmport_offset(struct nmport_d *d, uint64_t initial, uint64_t maxoff, uint64_t bits, uint64_t mingap)
{
	(void)initial;
	(void)maxoff;
	(void)bits;
	(void)mingap;
	return impossible(d, "an offset in buffers");
}

/* Puts a packet into the free slots of a ring; whether it fitted. */
int
nm_put(struct netmap_ring *ring, const void *buf, size_t size)
{
	/* Once: memory that is taken away with its port reads as zeros, from one moment to the next. */
	int64_t buffers = *(const volatile int64_t *)&ring->buf_ofs;
	uint32_t each = *(const volatile uint32_t *)&ring->nr_buf_size, n = *(const volatile uint32_t *)&ring->num_slots;
	uint32_t at = *(volatile uint32_t *)&ring->head, tail = *(volatile uint32_t *)&ring->tail;
	uint32_t room = each < UINT16_MAX ? each : UINT16_MAX;
	size_t slots;

	if (size == 0 || room == 0 || buffers == 0 || at >= n || tail >= n)
		return 0;
	slots = (size + room - 1) / room;
	if (slots > NETMAP_MAX_FRAGS || slots > (tail >= at ? tail - at : tail + n - at))
		return 0;
	while (size > 0) {
		struct netmap_slot *slot = &ring->slot[at];
		size_t part = size < room ? size : room;

		memcpy((char *)ring + buffers + (size_t)*(volatile uint32_t *)&slot->buf_idx * each, buf, part);
		slot->len = (uint16_t)part;
		size -= part;
		slot->flags = size > 0 ? NS_MOREFRAG : 0;
		buf = (const char *)buf + part;
		at = at + 1 == n ? 0 : at + 1;
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
