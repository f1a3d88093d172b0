/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Null ports (NR_REG_NULL): memory of the program's own, with extra buffers and an interface whose rings are not there. The
 * daemon has no part in it. As in netmap the name does not matter, and none of the rings is bound.
 */
#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define BUF_SIZE 2048
#define FIRST_BUF 2         /* 0 and 1 are reserved */
#define MOST_EXTRA 163840u  /* as for ports: netmap's default number of buffers */
#define MOST_RINGS 256u
#define PRIVATE_MEMORY 0x7000 /* neither a port's number nor a monitor's */

static void
fill(char *base, const struct ring_answer *info, const char *name, const struct nmreq_register *reg)
{
	struct netmap_if made = { .ni_flags = NI_PRIV_MEM, .ni_tx_rings = reg->nr_tx_rings,
		.ni_rx_rings = reg->nr_rx_rings, .ni_host_tx_rings = 1, .ni_host_rx_rings = 1,
		.ni_bufs_head = info->extra_bufs > 0 ? FIRST_BUF : 0 };
	uint32_t version = NETMAP_API, buf;

	memcpy((char *)&made + offsetof(struct netmap_if, ni_version), &version, sizeof(version));
	memcpy((char *)&made, name, strnlen(name, sizeof(made.ni_name) - 1));
	memcpy(base, &made, sizeof(made));
	for (buf = FIRST_BUF; buf < info->bufs; buf++) {
		uint32_t next = buf + 1 < info->bufs ? buf + 1 : 0;

		memcpy(base + info->buf_pool + (uint64_t)buf * BUF_SIZE, &next, sizeof(next));
	}
}

int
ring_null(struct ring_port *port, const char *name, const struct nmreq_register *reg, const char *home)
{
	struct ring_answer *info = &port->info;
	uint32_t extra = reg->nr_extra_bufs < MOST_EXTRA ? reg->nr_extra_bufs : MOST_EXTRA;
	int file, saved;

	(void)home;

	if (reg->nr_tx_rings > MOST_RINGS || reg->nr_rx_rings > MOST_RINGS) {
		errno = EINVAL;
		return -1;
	}
	*info = (struct ring_answer){ .buf_pool = 2 * PAGE, .buf_size = BUF_SIZE, .bufs = FIRST_BUF + extra,
		.extra_bufs = extra, .tx_slots = reg->nr_tx_slots, .rx_slots = reg->nr_rx_slots, .ring_pool = 2 * PAGE,
		.mem_id = reg->nr_mem_id != 0 ? reg->nr_mem_id : PRIVATE_MEMORY };
	/* With what netmap's packet copy may read and write too much. */
	info->memsize = info->buf_pool + (uint64_t)info->bufs * BUF_SIZE + PAGE;
	info->total = info->memsize;
	port->lease = port->host_lease = -1;
	port->control = eventfd(0, EFD_CLOEXEC);
	if (port->control < 0)
		return -1;
	file = memfd_create("netmap-null", MFD_CLOEXEC);
	if (file >= 0 && ftruncate(file, (off_t)info->total) == 0)
		port->memory = ring_map(file, info);
	if (port->memory == NULL) {
		saved = errno;
		if (file >= 0)
			close(file);
		close(port->control);
		errno = saved;
		return -1;
	}
	port->base = port->memory->base;
	fill(port->base, info, name, reg);
	return 0;
}
