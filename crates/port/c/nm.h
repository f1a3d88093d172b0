/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Inside libnetmap: what a file descriptor of /dev/netmap is in the kernel. */
#ifndef SIDECORE_NM_H
#define SIDECORE_NM_H

#include <net/netmap.h>

#include "ring.h"

/* What the kernel remembers of a ring (netmap calls it the kring): the indices as of the last sync. */
struct nm_kring {
	struct netmap_ring *ring;
	struct ring_link *link;
	uint32_t rhead, rcur, rtail;
};

/* An attached port; descriptors of this process share it. */
struct nm_port {
	struct nm_port *next;
	char name[NETMAP_REQ_IFNAMSIZ];
	int users;
	struct ring_port ring;
	struct netmap_if *nifp;
	struct nm_kring tx[RING_MAX], rx[RING_MAX];
};

/* A descriptor bound to rings of a port. */
struct nm_file {
	struct nm_port *port;
	uint16_t first_tx, last_tx, first_rx, last_rx; /* last is one behind; none if first == last */
	int no_tx_poll;
};

/* Binds a new descriptor to `port` as `reg` says, and fills `reg` in; the descriptor, or -1 and errno. */
int nm_bind(const char *name, struct nmreq_register *reg, struct nm_file **file);
int nm_unbind(int fd);
struct nm_file *nm_file(int fd);

/* Sync of one ring: 0, or -1 if it had to be reset. */
int nm_txsync(struct nm_port *port, struct nm_kring *kring);
int nm_rxsync(struct nm_kring *kring);

int nm_ioctl(struct nm_file *file, unsigned long request, void *arg);

#endif
