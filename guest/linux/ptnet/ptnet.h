/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ptnet: what the files share.
 *
 * Access. Of a TX ring everything belongs to the holder of its queue's lock: the stack that sends, and the poll that
 * looks what was sent. An RX ring belongs to its poll. While programs have the card (netmap.c) both are off, and a ring
 * belongs to the holder of its bit. What is in the shared memory and in the host's blocks may change at any moment: it
 * is read once and checked before it is used.
 */
#ifndef PTNET_H
#define PTNET_H

#include <asm/barrier.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/skbuff.h>
#include <linux/u64_stats_sync.h>
#include <linux/virtio_net.h>

#include "regs.h"

/* The longest frame: 64 KiB as the stack makes them, two VLAN tags. */
#define PT_LONGEST (GSO_LEGACY_MAX_SIZE + ETH_HLEN + 2 * VLAN_HLEN)

/* Linux 6.2 was the first to name it. */
#define PT_GSO_UDP_L4 5
#ifdef VIRTIO_NET_HDR_GSO_UDP_L4
static_assert(PT_GSO_UDP_L4 == VIRTIO_NET_HDR_GSO_UDP_L4);
#endif

/* Most programs that have rings of one card. */
#define PT_FILES 64

/* What is counted for each ring, in the order of the names in ethtool.c. */
enum {
	C_FRAMES, C_BYTES, C_PUBLICATIONS, C_KICKS, C_POLLS, C_STOPS, C_NO_MEMORY, C_TOO_LONG, C_BAD_SLOT, C_BAD_HEADER,
	C_BAD_TAIL, C_COUNTERS
};

/* The memory that a memdev has; it stays mapped until the last user has let it go. */
struct pt_memory {
	struct list_head list;
	struct kref users;
	struct device *device;
	u16 id;
	phys_addr_t at;
	u8 *base;
	u64 size;
	u8 *bufs;
	u32 buf_count;
	u32 buf_stride;
	u32 buf_size;			/* bytes of a buffer that a slot can tell of */
};

struct ptnet;

struct pt_ring {
	struct ptnet *p;
	struct pt_slot *slots;
	struct pt_guest *guest;		/* our block in the CSB */
	struct pt_host *host;		/* the host's; we set need_kick before CREATE, nothing else */
	void __iomem *kick;
	u32 size;
	u32 head;			/* TX: the next slot to fill; RX: the next frame */
	u32 published;			/* the head that the host knows */
	u32 tail;			/* the host's tail, as far as it was believable */
	u32 shown;			/* the tail that programs know (netmap.c) */
	unsigned long busy;		/* bit 0: a program syncs it */
	u32 clean;			/* TX: slots before this are counted as sent */
	u32 *bytes;			/* TX: length of the frame whose last slot this is, or 0 */
	u16 index;			/* among those of its direction */
	bool rx;
	struct napi_struct napi;
	struct u64_stats_sync sync;
	u64_stats_t counters[C_COUNTERS];
	unsigned long interrupts;	/* the handler's, which needs no lock */
	int vector;
	char name[IFNAMSIZ + 16];
} ____cacheline_aligned_in_smp;

struct ptnet {
	struct net_device *dev;
	struct pci_dev *pdev;
	void __iomem *regs;
	struct pt_memory *memory;
	u32 features;			/* granted */
	u32 header;			/* bytes of the header before each frame: 0 or 12 */
	u32 most;			/* slots of the longest frame that is sent */
	u32 wake;			/* a stopped queue goes on when it has so many slots */
	bool bql, more;
	bool serving;			/* between CREATE and DELETE */
	bool polled;			/* the stack has the rings */
	bool lent;			/* programs have */
	bool gone;
	struct list_head files;		/* programs that have rings; changed under rtnl and the lock */
	spinlock_t files_lock;
	struct pt_if *interfaces[PT_FILES]; /* what a program finds of the card: a page each */
	DECLARE_BITMAP(interfaces_used, PT_FILES);
	void *csb;
	dma_addr_t csb_dma;
	u32 tx_rings, rx_rings;
	struct pt_ring *rings;		/* TX rings first */
};

static inline u32 pt_get(struct ptnet *p, u32 reg)
{
	return ioread32(p->regs + reg);
}

static inline void pt_set(struct ptnet *p, u32 reg, u32 value)
{
	iowrite32(value, p->regs + reg);
}

static inline void pt_count(struct pt_ring *r, int which, unsigned long n)
{
	u64_stats_update_begin(&r->sync);
	u64_stats_add(&r->counters[which], n);
	u64_stats_update_end(&r->sync);
}

static inline u32 pt_next(const struct pt_ring *r, u32 at)
{
	return at + 1 == r->size ? 0 : at + 1;
}

/* Steps forward from `from` to `to`. */
static inline u32 pt_steps(const struct pt_ring *r, u32 from, u32 to)
{
	return to >= from ? to - from : to + r->size - from;
}

/* Slots that are ours: to fill, or with frames. */
static inline u32 pt_ours(const struct pt_ring *r)
{
	return pt_steps(r, r->head, r->tail);
}

/* The buffer of a slot, or NULL if the slot names none. */
static inline u8 *pt_buf(const struct pt_memory *m, u64 word)
{
	u32 buf = word & SLOT_BUF;

	return buf >= PT_RESERVED && buf < m->buf_count ? m->bufs + (u64)buf * m->buf_stride : NULL;
}

static inline u32 pt_len(u64 word)
{
	return (word & SLOT_LEN) >> 32;
}

struct pt_memory *pt_memory_get(u16 id, struct device *user);
void pt_memory_put(struct pt_memory *memory);
extern struct pci_driver pt_memory_driver;

/* Where a frame of the stack's is read, and where one is written (copy.c). */
struct pt_reader {
	struct skb_seq_state state;
	const u8 *from;
	u32 left;			/* bytes there */
	u32 done;			/* the frame's bytes up to the end of those */
};

struct pt_writer {
	struct sk_buff *skb;
	u8 *to;
	u32 left;
	u32 frag;			/* the next one */
};

void pt_copy_init(void);
void pt_read_begin(struct pt_reader *at, struct sk_buff *skb);
bool pt_read(struct pt_reader *at, u8 *to, u32 bytes);
void pt_read_end(struct pt_reader *at);
void pt_write_begin(struct pt_writer *at, struct sk_buff *skb);
bool pt_write(struct pt_writer *at, const u8 *from, u32 bytes);

int pt_rings_map(struct ptnet *p);
int pt_ring_begin(struct pt_ring *r);
u32 pt_look(struct pt_ring *r);
void pt_publish(struct pt_ring *r, u32 cur, u32 flags);
void pt_kick(struct pt_ring *r, u32 flags);

netdev_tx_t pt_xmit(struct sk_buff *skb, struct net_device *dev);
int pt_tx_poll(struct napi_struct *napi, int budget);
void pt_tx_begin(struct pt_ring *r);
int pt_rx_poll(struct napi_struct *napi, int budget);
void pt_rx_begin(struct pt_ring *r);
void pt_link(struct ptnet *p);

void pt_counters(const struct pt_ring *r, u64 *to);
extern const struct ethtool_ops pt_ethtool_ops;

bool pt_is_ours(const struct net_device *dev);
int pt_lend(struct ptnet *p);
void pt_take_back(struct ptnet *p);
void pt_files_init(void);
void pt_files_exit(void);
void pt_files_part(struct ptnet *p);
void pt_files_wake(struct pt_ring *r);

#endif
