/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Registers and descriptors of the RTL8169S and SB (Realtek's data sheet of the RTL8169S/8110S), as far as this driver uses
 * them, and the communication status block that sidecore's card has beside them.
 */
#ifndef R8169X_REGS_H
#define R8169X_REGS_H

#include <linux/bits.h>
#include <linux/types.h>

/* Registers are 1, 2 or 4 bytes wide: b, w, l. BAR 1 has them in memory. */
#define R_BAR		1
#define R_SPACE		256
#define R_IDR		0x00		/* l, l: the station's address */
#define R_MAR		0x08		/* l, l: groups, by a hash */
#define R_TNPDS		0x20		/* l, l: the transmit ring */
#define R_CR		0x37		/* b */
#define   CR_TE		BIT(2)
#define   CR_RE		BIT(3)
#define   CR_RST	BIT(4)		/* reset; clears itself */
#define R_TPPOLL	0x38		/* b: the doorbell */
#define   TPPOLL_NPQ	BIT(6)
#define R_IMR		0x3c		/* w: causes that interrupt */
#define R_ISR		0x3e		/* w: causes; what is written is cleared */
#define   INT_ROK	BIT(0)		/* frames have come */
#define   INT_TOK	BIT(2)		/* frames were sent */
#define   INT_LINK	BIT(5)
#define R_TCR		0x40		/* l */
#define   TCR_VALUE	(7 << 8 | 3 << 24) /* bursts without a limit, the usual gap */
#define R_RCR		0x44		/* l */
#define   RCR_AAP	BIT(0)		/* all unicast */
#define   RCR_APM	BIT(1)		/* ours */
#define   RCR_AM	BIT(2)		/* groups in MAR */
#define   RCR_AB	BIT(3)		/* broadcast */
#define   RCR_VALUE	(7 << 8 | 7 << 13) /* bursts without a limit, no threshold */
#define R_9346CR	0x50		/* b */
#define   CR_CONFIG	0xc0		/* addresses may be written */
#define R_PHYSTATUS	0x6c		/* b */
#define   PHY_LINK	BIT(1)
#define R_CSBAL		0x70		/* l: where the status block is; zero: nowhere */
#define R_CSBAH		0x74		/* l */
#define R_RMS		0xda		/* w: longest frame */
#define R_CPCR		0xe0		/* w */
#define   CPCR_DAC	BIT(4)		/* addresses of 64 bits */
#define   CPCR_RXCSUM	BIT(5)
#define R_MITIGATION	0xe2		/* w */
#define R_RDSAR		0xe4		/* l, l: the receive ring */

/* A descriptor: a word whose highest bit of the lower half says whose it is, and an address. */
struct r8169x_desc {
	__le64 word;
	__le64 addr;
};

#define D_OWN		BIT_ULL(31)	/* the device's */
#define D_EOR		BIT_ULL(30)	/* the ring ends here */
#define D_FS		BIT_ULL(29)	/* a frame begins, and ends */
#define D_LS		BIT_ULL(28)
#define TXD_LGSEN	BIT_ULL(27)	/* segments of so many bytes are to be cut */
#define TXD_MSS_SHIFT	16
#define TXD_MSS		0x7ffu
#define TXD_IPCS	BIT_ULL(18)	/* without LGSEN: which checksums are to be made */
#define TXD_UDPCS	BIT_ULL(17)
#define TXD_TCPCS	BIT_ULL(16)
#define RXD_LEN		GENMASK_ULL(13, 0) /* with the frame's checksum */
#define RXD_RES		BIT_ULL(21)	/* something was wrong */
#define RXD_UDP		BIT_ULL(18)	/* whose checksum was looked at */
#define RXD_TCP		BIT_ULL(17)
#define RXD_WRONG	(BIT_ULL(16) | BIT_ULL(15) | BIT_ULL(14)) /* that of IP, UDP, TCP was wrong */

/*
 * The communication status block: a page of the guest's by which driver and host tell each other what they want. The
 * same as an e1000's; this card's tails and heads say nothing, since each descriptor says whose it is.
 */
#define CSB_DEVICE	0x1101		/* subsystem device id of a card that has it */
#define CSB_SIZE	4096
#define CSB_NEVER	0xffffffff

struct r8169x_csb {
	u32 guest_tdt;			/* 0x00 */
	u32 guest_need_txkick;		/* an interrupt is wanted when frames were sent */
	u32 guest_need_rxkick;		/* an interrupt is wanted when frames come */
	u32 guest_csb_on;
	u32 guest_rdt;			/* 0x10 */
	u32 guest_txkick_at;
	u32 guest_use_msix;
	u32 pad[9];
	u32 host_tdh;			/* 0x40 */
	u32 host_need_txkick;		/* bit 0: the doorbell is wanted */
	u32 host_txcycles_lim;
	u32 host_txcycles;
	u32 host_rdh;			/* 0x50 */
	u32 host_need_rxkick;
	u32 host_isr;
	u32 host_rxkick_at;
};

#endif
