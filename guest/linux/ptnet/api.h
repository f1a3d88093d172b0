/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The requests that programs make of /dev/netmap: API 14, and the one request of older programs that open a port. */
#ifndef PTNET_API_H
#define PTNET_API_H

#include <linux/build_bug.h>
#include <linux/ioctl.h>
#include <linux/types.h>

#define NM_API_MIN	14
#define NM_API_MAX	15
#define NM_API_OLDEST	11		/* of NM_OLD_REGISTER */

struct nm_header {
	u16 version;
	u16 type;
	u32 reserved;
	char name[64];
	u64 options;			/* the first of a list of struct nm_option */
	u64 body;
};

#define NM_REGISTER	1
#define NM_PORT_INFO	2
#define NM_HEADER_GET	7

struct nm_option {
	u64 next;
	u32 type;
	u32 status;
	u64 size;
};

struct nm_register {
	u64 offset;
	u64 memsize;
	u32 tx_slots, rx_slots;
	u16 tx_rings, rx_rings, host_tx_rings, host_rx_rings;
	u16 mem_id;
	u16 ringid;
	u32 mode;
	u32 extra_bufs;
	u64 flags;
};

#define NM_ALL_NIC	1
#define NM_ONE_NIC	4

#define NM_EXCLUSIVE	0x800
#define NM_RX_ONLY	0x2000
#define NM_TX_ONLY	0x4000
#define NM_ACCEPT_HEADER 0x8000
#define NM_NO_TX_POLL	0x20000
/* Monitors: of what is sent, received, without copies. */
#define NM_MONITORS	0x700

struct nm_port_info {
	u64 memsize;
	u32 tx_slots, rx_slots;
	u16 tx_rings, rx_rings, host_tx_rings, host_rx_rings;
	u16 mem_id;
	u16 pad[3];
};

struct nm_old {
	char name[16];
	u32 version;
	u32 offset;
	u32 memsize;
	u32 tx_slots, rx_slots;
	u16 tx_rings, rx_rings;
	u16 ringid;
	u16 cmd;
	u16 arg1, arg2;
	u32 arg3;
	u32 flags;
	u32 spare;
};

#define NM_OLD_HEADER_GET 12		/* nm_old.cmd; the answer is in arg1 */
#define NM_OLD_RING	0x0fff		/* nm_old.ringid */
#define NM_OLD_NO_TX_POLL 0x1000
#define NM_OLD_HOST	0x2000
#define NM_OLD_ONE	0x4000
#define NM_OLD_MODE	0xf		/* nm_old.flags */

static_assert(sizeof(struct nm_header) == 88 && sizeof(struct nm_option) == 24);
static_assert(sizeof(struct nm_register) == 56 && sizeof(struct nm_port_info) == 32 && sizeof(struct nm_old) == 60);

#define NM_OLD_INFO	_IOWR('i', 145, struct nm_old)
#define NM_OLD_REGISTER	_IOWR('i', 146, struct nm_old)
#define NM_TXSYNC	_IO('i', 148)
#define NM_RXSYNC	_IO('i', 149)
#define NM_CONTROL	_IOWR('i', 151, struct nm_header)

#endif
