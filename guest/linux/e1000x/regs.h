/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Registers and descriptors of the 82540EM (Intel's 8254x manual, "SDM") and the 82574L ("82574"), as far as this
 * driver uses them, and the CSB of the paravirtual e1000.
 */
#ifndef E1000X_REGS_H
#define E1000X_REGS_H

#include <linux/bits.h>
#include <linux/types.h>

/* SDM 13.4.1 to 13.4.22 */
#define R_CTRL		0x0000
#define   CTRL_SLU	BIT(6)		/* set link up */
#define   CTRL_RST	BIT(26)		/* reset; clears itself */
#define R_STATUS	0x0008
#define   STATUS_LU	BIT(1)		/* link up */
#define   STATUS_PCIX	BIT(13)		/* takes 64-bit addresses */
#define R_CTRL_EXT	0x0018
#define   CTRL_EXT_EIAME BIT(24)	/* 82574 10.2.2.5: a message takes its causes out of IAM */
#define   CTRL_EXT_IAME	BIT(27)
#define   CTRL_EXT_PBA	BIT(31)		/* pending bits are cleared by messages */
#define R_ICR		0x00c0		/* causes; reading clears them */
#define R_ITR		0x00c4		/* least gap between interrupts, 256 ns */
#define R_IMS		0x00d0		/* mask: set */
#define R_IMC		0x00d8		/* mask: clear */
#define R_EIAC		0x00dc		/* 82574: causes that a message clears and masks */
#define R_IVAR		0x00e4		/* 82574: which message a cause has */
#define R_EITR(n)	(0x00e8 + 4 * (n))
#define   INT_TXDW	BIT(0)		/* descriptors are done */
#define   INT_LSC	BIT(2)		/* the link changed */
#define   INT_RXDMT0	BIT(4)		/* few receive descriptors are left */
#define   INT_RXO	BIT(6)		/* none was left */
#define   INT_RXT0	BIT(7)		/* frames have come */
#define   INT_RXQ0	BIT(20)		/* 82574: the same for messages */
#define   INT_TXQ0	BIT(22)
#define   INT_OTHER	BIT(24)
#define R_RCTL		0x0100
#define   RCTL_EN	BIT(1)
#define   RCTL_UPE	BIT(3)		/* all unicast */
#define   RCTL_MPE	BIT(4)		/* all multicast */
#define   RCTL_BAM	BIT(15)		/* broadcast */
#define   RCTL_SECRC	BIT(26)		/* without the frame's checksum; buffers of 2048 bytes: all zero */
#define R_TCTL		0x0400
#define   TCTL_EN	BIT(1)
#define   TCTL_PSP	BIT(3)		/* pad short frames */
#define   TCTL_FULL	(0x0f << 4 | 0x40 << 12) /* collisions: values for full duplex */
#define R_TIPG		0x0410
#define   TIPG_COPPER	0x00602008

/* The rings, SDM 13.4.25 to 13.4.44: two pages that a good host lets us map, so that no access leaves the guest */
#define R_RX		0x2800
#define R_TX		0x3800
#define   RING_BAL	0x00
#define   RING_BAH	0x04
#define   RING_LEN	0x08
#define   RING_HEAD	0x10
#define   RING_TAIL	0x18
#define   RING_DELAY	0x20
#define R_CSBAL		0x2830
#define R_CSBAH		0x2834

#define R_RXCSUM	0x5000
#define   RXCSUM_IPOFL	BIT(8)
#define   RXCSUM_TUOFL	BIT(9)
#define R_RFCTL		0x5008		/* 82574: zero for legacy receive descriptors */
#define R_RAL0		0x5400
#define R_RAH0		0x5404

/* A descriptor: an address, and a word whose meaning depends on the kind. SDM 3.2.3, 3.3.3 */
struct e1000x_desc {
	__le64 addr;
	__le64 word;
};

#define RXW_LEN		GENMASK_ULL(15, 0)
#define RXW_DD		BIT_ULL(32)
#define RXW_EOP		BIT_ULL(33)
#define RXW_IXSM	BIT_ULL(34)	/* nothing is said about checksums */
#define RXW_TCPCS	BIT_ULL(37)	/* TCP or UDP was looked at */
#define RXW_ERRORS	(0x97ULL << 40)	/* CRC, symbol, sequence, carrier, other */
#define RXW_TCPE	BIT_ULL(45)

#define TXW_EOP		BIT_ULL(24)
#define TXW_IFCS	BIT_ULL(25)
#define TXW_TSE		BIT_ULL(26)
#define TXW_RS		BIT_ULL(27)
#define TXW_DEXT	BIT_ULL(29)
#define TXW_DATA	BIT_ULL(20)
#define TXW_DD		BIT_ULL(32)
#define TXW_IXSM	BIT_ULL(40)
#define TXW_TXSM	BIT_ULL(41)
/* The context's own: TCP, IPv4 */
#define TXC_TCP		BIT_ULL(24)
#define TXC_IP		BIT_ULL(25)

/*
 * The communication status block: one page of guest memory through which driver and host tell each other where they
 * are. Written by the guest up to `pad`, by the host after it (but for the number of cycles).
 */
#define CSB_DEVICE	0x1101		/* subsystem device id of a device that has it */
#define CSB_SIZE	4096
#define CSB_NEVER	0xffffffff

struct e1000x_csb {
	u32 guest_tdt;			/* 0x00: the transmit tail */
	u32 guest_need_txkick;		/* an interrupt is wanted for completions */
	u32 guest_need_rxkick;		/* an interrupt is wanted for frames */
	u32 guest_csb_on;
	u32 guest_rdt;			/* 0x10: the receive tail */
	u32 guest_txkick_at;
	u32 guest_use_msix;
	u32 pad[9];
	u32 host_tdh;			/* 0x40 */
	u32 host_need_txkick;		/* bit 0: write TDT */
	u32 host_txcycles_lim;
	u32 host_txcycles;
	u32 host_rdh;			/* 0x50 */
	u32 host_need_rxkick;
	u32 host_isr;
	u32 host_rxkick_at;		/* write RDT when it becomes this */
};

#endif
