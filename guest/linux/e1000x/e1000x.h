/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * e1000x: what the files share.
 *
 * Locks. The transmit ring belongs to the holder of `tx_lock`: the stack that sends, and the poll that takes back what
 * was sent. The receive ring belongs to the poll (NAPI runs it once at a time).
 */
#ifndef E1000X_H
#define E1000X_H

#include <linux/hrtimer.h>
#include <linux/netdevice.h>
#include <linux/pci.h>

#include "regs.h"

/* Switches: module parameters, and private flags of ethtool, in this order. */
enum {
	X_SC,		/* send combining: no doorbell while a completion interrupt is due anyway */
	X_LAZY,		/* lazy completion: no interrupts for it; the sender itself cleans up */
	X_MORE,		/* one doorbell for what the stack sends at once */
	X_NAPI,		/* poll under load; without: every interrupt is served by itself */
	X_CSB,		/* use the CSB if the device has one */
	X_POLLING,	/* no interrupts at all: a timer polls */
	X_SWITCHES
};

/* What is counted, in the order of the names in ethtool.c. */
enum {
	C_IRQS, C_POLLS, C_TX_DOORBELLS, C_TX_DEFERRED, C_TX_CLEANED_BY_SENDER, C_RX_DOORBELLS, C_STOPS, C_CSB_SILENT,
	C_RX_NO_MEMORY, C_TIMER_TICKS, C_COUNTERS
};

struct x_tx_buffer {
	struct sk_buff *skb;	/* with the last descriptor of its frame */
	dma_addr_t dma;
	u32 len;		/* 0: nothing is mapped */
	bool page;
};

struct x_rx_buffer {
	struct sk_buff *skb;
	dma_addr_t dma;
};

struct x_ring {
	struct e1000x_desc *desc;
	dma_addr_t dma;
	u32 size;
	u32 use;		/* the next that the driver fills */
	u32 clean;		/* the next that it takes back */
	u32 tail;		/* what the device has been told */
};

struct e1000x {
	struct net_device *dev;
	struct pci_dev *pdev;
	u8 __iomem *regs;
	bool is_82574, msix;
	unsigned long switches;
	u32 itr;		/* 256 ns */

	spinlock_t tx_lock;
	struct x_ring tx;
	struct x_tx_buffer *tx_buffers;
	u64 context;		/* the checksum context that the device has; 0: none */

	struct x_ring rx ____cacheline_aligned;
	struct x_rx_buffer *rx_buffers;
	struct napi_struct napi;

	struct e1000x_csb *csb;
	dma_addr_t csb_dma;

	struct hrtimer timer;
	u32 poll_ns, share;	/* device polling: how often, and the part of a processor in percent */
	ktime_t poll_began;
	struct delayed_work watch;
	bool runs;		/* interrupts may start work */
	u64 counters[C_COUNTERS];
};

static inline bool x_is(const struct e1000x *x, int which)
{
	return test_bit(which, &x->switches);
}

static inline void x_set(struct e1000x *x, u32 reg, u32 value)
{
	writel(value, x->regs + reg);
}

static inline u32 x_get(struct e1000x *x, u32 reg)
{
	return readl(x->regs + reg);
}

static inline u32 x_next(const struct x_ring *ring, u32 at)
{
	return at + 1 == ring->size ? 0 : at + 1;
}

/* Descriptors that can be filled; one always stays empty, because a full ring would look like an empty one. */
static inline u32 x_free(const struct x_ring *ring)
{
	return (ring->clean + ring->size - ring->use - 1) % ring->size;
}

/* The interrupts of the rings. */
static inline u32 x_ring_causes(const struct e1000x *x)
{
	/* No thread waits for completions: the sender looks itself, except when it has stopped. */
	bool tx = !x_is(x, X_LAZY) || x_is(x, X_SC) || netif_queue_stopped(x->dev);

	if (x->msix)
		return INT_RXQ0 | (tx ? INT_TXQ0 : 0);
	return INT_RXT0 | INT_RXDMT0 | INT_RXO | (tx ? INT_TXDW : 0);
}

int x_rings_alloc(struct e1000x *x, u32 tx, u32 rx);
void x_rings_free(struct e1000x *x);
void x_rings_start(struct e1000x *x);
void x_rings_drop(struct e1000x *x);
int x_poll(struct napi_struct *napi, int budget);
netdev_tx_t x_xmit(struct sk_buff *skb, struct net_device *dev);
bool x_tx_clean(struct e1000x *x);
void x_tx_kick(struct e1000x *x);
extern const struct ethtool_ops x_ethtool_ops;
void x_moderate(struct e1000x *x);

#endif
