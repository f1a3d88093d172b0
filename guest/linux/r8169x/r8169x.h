/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * r8169x: what the files share.
 *
 * Locks. The transmit ring belongs to the holder of `tx_lock`: the stack that sends, and the poll that takes back what
 * was sent. The receive ring belongs to the poll (NAPI runs it once at a time).
 */
#ifndef R8169X_H
#define R8169X_H

#include <linux/netdevice.h>
#include <linux/pci.h>

#include "regs.h"

/* What is counted, in the order of the names in ethtool.c. */
enum {
	C_IRQS, C_POLLS, C_TX_DOORBELLS, C_CSB_SILENT, C_STOPS, C_RX_NO_MEMORY, C_COUNTERS
};

struct r_buffer {
	struct sk_buff *skb;	/* TX: with the last descriptor of its frame */
	dma_addr_t dma;
	u32 len;		/* TX: 0: nothing is mapped */
	bool page;
};

struct r_ring {
	struct r8169x_desc *desc;
	struct r_buffer *buffers;
	dma_addr_t dma;
	u32 size;
	u32 use;		/* the next that the driver fills */
	u32 clean;		/* the next that it takes back */
};

struct r8169x {
	struct net_device *dev;
	struct pci_dev *pdev;
	u8 __iomem *regs;
	u16 mask;		/* causes that interrupt while nothing is polled */
	bool runs;

	spinlock_t tx_lock;
	struct r_ring tx;
	bool told;		/* the device knows of all that is in the ring */

	struct r_ring rx ____cacheline_aligned;
	struct napi_struct napi;

	struct r8169x_csb *csb;
	dma_addr_t csb_dma;

	struct delayed_work watch;
	u64 counters[C_COUNTERS];
};

static inline u32 r_next(const struct r_ring *ring, u32 at)
{
	return at + 1 == ring->size ? 0 : at + 1;
}

/* Descriptors that can be filled; one always stays empty, because a full ring would look like an empty one. */
static inline u32 r_free(const struct r_ring *ring)
{
	return (ring->clean + ring->size - ring->use - 1) % ring->size;
}

int r_rings_alloc(struct r8169x *r, u32 tx, u32 rx);
void r_rings_free(struct r8169x *r);
void r_rings_start(struct r8169x *r);
void r_rings_drop(struct r8169x *r);
int r_poll(struct napi_struct *napi, int budget);
netdev_tx_t r_xmit(struct sk_buff *skb, struct net_device *dev);
extern const struct ethtool_ops r_ethtool_ops;

#endif
