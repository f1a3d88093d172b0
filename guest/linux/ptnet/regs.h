/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What driver and host agreed on: registers of the two PCI functions, the blocks through which they tell each other
 * where they are (CSB), and netmap's interface, rings and slots (API 14) in the memory that they share.
 *
 * Everything is little endian and naturally aligned.
 */
#ifndef PTNET_REGS_H
#define PTNET_REGS_H

#include <linux/bits.h>
#include <linux/build_bug.h>
#include <linux/types.h>

#define PT_VENDOR	0x1b36
#define PT_MEMORY	0x000c		/* ptnetmap-memdev: the memory */
#define PT_NET		0x000d		/* ptnet: the network interface */

/* ptnet, BAR 0 */
#define R_FEATURES	0x00		/* written: wanted; read: granted */
#define   F_HEADER	BIT(0)		/* frames begin with a virtio-net header */
/* These three are sidecore's; other hosts do not grant them. */
#define   F_HOST_USO	BIT(1)		/* the host takes UDP frames to be segmented */
#define   F_GUEST_USO	BIT(2)		/* the guest does */
#define   F_LINK	BIT(3)		/* the host keeps pt_host.link of the first RX ring */
#define R_CONTROL	0x04		/* written: a command; read: 0 or what went wrong, an errno */
#define   CONTROL_CREATE 1		/* the host begins to serve the rings */
#define   CONTROL_DELETE 2		/* it has ended when the write has */
#define R_MAC_LOW	0x08		/* the address's last four bytes, the first of them in the highest bits */
#define R_MAC_HIGH	0x0c		/* its first two */
#define R_IF_OFFSET	0x18		/* where pt_if is in the memory */
#define R_TX_RINGS	0x1c
#define R_RX_RINGS	0x20
#define R_TX_SLOTS	0x24
#define R_RX_SLOTS	0x28
#define R_HEADER	0x2c		/* bytes of the header; written: wanted, read: what holds */
#define R_MEMORY_ID	0x30		/* which memory */
#define R_GUEST_HIGH	0x34		/* address of the page of pt_guest; writing its low half counts */
#define R_GUEST_LOW	0x38
#define R_HOST_HIGH	0x3c		/* address of the page of pt_host */
#define R_HOST_LOW	0x40
#define R_MTU		0x44		/* sidecore's: largest MTU; 0 is unknown */
#define R_KICK(ring)	(0x80 + 4 * (ring))
#define PT_REGS		0x100
#define PT_RINGS	((PT_REGS - R_KICK(0)) / 4)

/* memdev, BAR 0; BAR 1 is the memory */
#define M_SIZE_LOW	0x00
#define M_SIZE_HIGH	0x04
#define M_ID		0x08
#define M_BUFS_OFFSET	0x58
#define M_BUFS		0x5c
#define M_BUF_SIZE	0x60
#define M_REGS		0x64

#define PT_PAGE		4096		/* a page of blocks, whatever the kernel's pages are */

/* Of each ring, TX rings first: written by the guest ... */
struct pt_guest {
	u32 head;			/* first slot that the guest keeps */
	u32 cur;			/* it waits for the host's tail to pass this */
	u32 need_kick;			/* it wants an interrupt when that moves */
	u32 sync_flags;			/* why it kicked last */
	u8 pad[48];
};

#define SYNC_READ	1		/* it looks for frames */
#define SYNC_RECLAIM	2		/* it looks for free slots */

/* ... and by the host. */
struct pt_host {
	u32 hwcur;			/* first slot that the host has not looked at */
	u32 hwtail;			/* first slot that is not the guest's */
	u32 need_kick;			/* the host wants a kick when the guest's head moves */
	u32 link;			/* under F_LINK, first RX ring: 1 while there is a link */
	u8 pad[48];
};

static_assert(sizeof(struct pt_guest) == 64 && sizeof(struct pt_host) == 64);
static_assert(PT_RINGS * sizeof(struct pt_host) <= PT_PAGE);

/* A slot: its word is read and written at once, so that no half of it is another slot's. */
struct pt_slot {
	u64 word;
	u64 ptr;
};

#define SLOT_BUF	GENMASK_ULL(31, 0)
#define SLOT_LEN	GENMASK_ULL(47, 32)
#define SLOT_CHANGED	BIT_ULL(48)	/* the slot has another buffer than it had */
#define SLOT_MORE	BIT_ULL(53)	/* the frame goes on in the next slot */
#define PT_RESERVED	2		/* buffers 0 and 1 are in no slot */
#define PT_FRAGS	64		/* slots of a frame */

/* The head of a ring. The indices are between a program and its kernel; those of the blocks are
 * between the two sides. */
struct pt_ring_head {
	s64 buf_ofs;
	u32 num_slots;
	u32 buf_size;
	u16 ringid;
	u16 dir;
	u32 head;
	u32 cur;
	u32 tail;
	u32 flags;
	u32 pad;
	s64 ts[2];			/* when frames were found last: seconds, microseconds */
	u8 pad2[200];
	struct pt_slot slots[];
};

static_assert(sizeof(struct pt_ring_head) == 256);

/* The interface; behind it offsets of rings from here: TX, TX to the host's stack, RX, RX from the host's stack. */
struct pt_if {
	char name[16];
	u32 version;
	u32 flags;
	u32 tx_rings;
	u32 rx_rings;
	u32 bufs_head;
	u32 host_tx_rings;
	u32 host_rx_rings;
	u32 spare[3];
	s64 ring_ofs[];
};

static_assert(sizeof(struct pt_if) == 56);

#endif
