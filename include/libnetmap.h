/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The port calls of libnetmap on sidecore's ring ports. docs/netmap.md says which calls of the published library are
 * here.
 */
#ifndef SIDECORE_LIBNETMAP_H
#define SIDECORE_LIBNETMAP_H

#include <net/netmap.h>

#ifdef __cplusplus
extern "C" {
#endif

struct nmctx;
struct nmem_d;
struct nmreq_opt_extmem;
struct nmport_cleanup_d;

struct nmport_d {
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nmem_d *mem;
	struct nmctx *ctx;
	int register_done;
	int mmap_done;
	struct nmreq_opt_extmem *extmem;
	int fd;
	struct netmap_if *nifp;
	uint16_t first_tx_ring;
	uint16_t last_tx_ring;
	uint16_t first_rx_ring;
	uint16_t last_rx_ring;
	uint16_t cur_tx_ring;
	uint16_t cur_rx_ring;
	struct nmport_cleanup_d *clist;
};

/* A port, ready to use; NULL and errno if that cannot be, and a line on standard error says why. */
struct nmport_d *nmport_open(const char *portspec);
void nmport_close(struct nmport_d *d);

/* The same in steps: parse the name, then attach. */
struct nmport_d *nmport_prepare(const char *portspec);
int nmport_open_desc(struct nmport_d *d);
void nmport_undo_open_desc(struct nmport_d *d);
void nmport_undo_prepare(struct nmport_d *d);

/* Another descriptor of the same name, to be opened. */
struct nmport_d *nmport_clone(struct nmport_d *d);

/* Puts a packet into the first TX ring that has room, over several slots if need be; its size, or 0. */
int nmport_inject(struct nmport_d *d, const void *buf, size_t size);

#ifdef __cplusplus
}
#endif

#endif
