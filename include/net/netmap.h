/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The netmap API, version 14, as sidecore's ring ports speak it: layouts and numbers of the published
 * interface, written anew. The layouts of the data path are those of `sidecore_abi::netmap`, and a test
 * compares the two. What of the API works, and how, stands in docs/netmap.md.
 */
#ifndef SIDECORE_NET_NETMAP_H
#define SIDECORE_NET_NETMAP_H

#include <net/if.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NETMAP_API 14
#define NETMAP_MIN_API 14
#define NETMAP_MAX_API 15

#define NM_CACHE_ALIGN 128
#define NETMAP_REQ_IFNAMSIZ 64
#define NETMAP_REQ_MAXSIZE 4096
#define NETMAP_MAX_FRAGS 64
#define NM_BDG_NAME "vale"
#define NETMAP_DEVICE_NAME "/dev/netmap"

/* A slot: which buffer, and how much of it is a packet. */
struct netmap_slot {
	uint32_t buf_idx;
	uint16_t len;
	uint16_t flags; /* NS_* */
	uint64_t ptr;   /* address under NS_INDIRECT */
};

#define NS_BUF_CHANGED 0x0001
#define NS_REPORT 0x0002
#define NS_FORWARD 0x0004
#define NS_NO_LEARN 0x0008
#define NS_INDIRECT 0x0010
#define NS_MOREFRAG 0x0020
#define NS_TXMON 0x0040
#define NS_PORT_SHIFT 8
#define NS_PORT_MASK (0xff << NS_PORT_SHIFT)
#define NS_RFRAGS(slot) (((slot)->flags >> 8) & 0xff)

/* A ring. The program owns the slots from head up to tail. */
struct netmap_ring {
	const int64_t buf_ofs;      /* from the ring to buffer 0 */
	const uint32_t num_slots;
	const uint32_t nr_buf_size;
	const uint16_t ringid;
	const uint16_t dir;         /* 0: the program sends, 1: it receives */
	uint32_t head;              /* first slot that the program keeps */
	uint32_t cur;               /* it is woken when tail goes past this */
	uint32_t tail;              /* first slot that it does not own */
	uint32_t flags;             /* NR_* */
	struct timeval ts;          /* of the last sync that received, under NR_TIMESTAMP */
	const uint64_t offset_mask;
	const uint64_t buf_align;
	uint8_t __attribute__((__aligned__(NM_CACHE_ALIGN))) sem[128];
	struct netmap_slot slot[];
};

#define NR_TIMESTAMP 0x0002
#define NR_FORWARD 0x0004

/* An interface: where its rings are. */
struct netmap_if {
	char ni_name[IFNAMSIZ];
	const uint32_t ni_version;
	const uint32_t ni_flags; /* NI_* */
	const uint32_t ni_tx_rings;
	const uint32_t ni_rx_rings;
	uint32_t ni_bufs_head; /* list of extra buffers; each one's first word is the next, 0 ends it */
	const uint32_t ni_host_tx_rings;
	const uint32_t ni_host_rx_rings;
	uint32_t ni_spare1[3];
	const ssize_t ring_ofs[]; /* TX, host TX, RX, host RX; 0: not there */
};

#define NI_PRIV_MEM 0x1

/* Requests: a header, and a body that it points to. */
struct nmreq_header {
	uint16_t nr_version;
	uint16_t nr_reqtype; /* NETMAP_REQ_* */
	uint32_t nr_reserved;
	char nr_name[NETMAP_REQ_IFNAMSIZ];
	uint64_t nr_options;
	uint64_t nr_body;
};

enum {
	NETMAP_REQ_REGISTER = 1,
	NETMAP_REQ_PORT_INFO_GET,
	NETMAP_REQ_VALE_ATTACH,
	NETMAP_REQ_VALE_DETACH,
	NETMAP_REQ_VALE_LIST,
	NETMAP_REQ_PORT_HDR_SET,
	NETMAP_REQ_PORT_HDR_GET,
	NETMAP_REQ_VALE_NEWIF,
	NETMAP_REQ_VALE_DELIF,
	NETMAP_REQ_VALE_POLLING_ENABLE,
	NETMAP_REQ_VALE_POLLING_DISABLE,
	NETMAP_REQ_POOLS_INFO_GET,
	NETMAP_REQ_SYNC_KLOOP_START,
	NETMAP_REQ_SYNC_KLOOP_STOP,
	NETMAP_REQ_CSB_ENABLE
};

struct nmreq_option {
	uint64_t nro_next;
	uint32_t nro_reqtype;
	uint32_t nro_status;
	uint64_t nro_size;
};

enum {
	NETMAP_REQ_OPT_EXTMEM = 1,
	NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS,
	NETMAP_REQ_OPT_CSB,
	NETMAP_REQ_OPT_SYNC_KLOOP_MODE,
	NETMAP_REQ_OPT_OFFSETS,
	NETMAP_REQ_OPT_MAX
};

struct nmreq_register {
	uint64_t nr_offset;
	uint64_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;
	uint16_t nr_ringid;
	uint32_t nr_mode; /* NR_REG_* */
	uint32_t nr_extra_bufs;
	uint64_t nr_flags;
};

enum {
	NR_REG_DEFAULT = 0,
	NR_REG_ALL_NIC,
	NR_REG_SW,
	NR_REG_NIC_SW,
	NR_REG_ONE_NIC,
	NR_REG_PIPE_MASTER,
	NR_REG_PIPE_SLAVE,
	NR_REG_NULL,
	NR_REG_ONE_SW
};

#define NR_MONITOR_TX 0x100
#define NR_MONITOR_RX 0x200
#define NR_ZCOPY_MON 0x400
#define NR_EXCLUSIVE 0x800
#define NR_RX_RINGS_ONLY 0x2000
#define NR_TX_RINGS_ONLY 0x4000
#define NR_ACCEPT_VNET_HDR 0x8000
#define NR_DO_RX_POLL 0x10000
#define NR_NO_TX_POLL 0x20000

struct nmreq_port_info_get {
	uint64_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;
	uint16_t pad[3];
};

struct nmreq_port_hdr {
	uint32_t nr_hdr_len;
	uint32_t pad1;
};

/* The request of netmap's older programs. */
struct nmreq {
	char nr_name[IFNAMSIZ];
	uint32_t nr_version;
	uint32_t nr_offset;
	uint32_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_ringid;
	uint16_t nr_cmd;
	uint16_t nr_arg1;
	uint16_t nr_arg2;
	uint32_t nr_arg3;
	uint32_t nr_flags;
	uint32_t spare2[1];
};

#define NETMAP_HW_RING 0x4000
#define NETMAP_SW_RING 0x2000
#define NETMAP_RING_MASK 0x0fff
#define NETMAP_NO_TX_POLL 0x1000
#define NETMAP_DO_RX_POLL 0x8000
#define NR_REG_MASK 0xf

#define NIOCTXSYNC _IO('i', 148)
#define NIOCRXSYNC _IO('i', 149)
#define NIOCCTRL _IOWR('i', 151, struct nmreq_header)
#define NIOCGINFO _IOWR('i', 145, struct nmreq)
#define NIOCREGIF _IOWR('i', 146, struct nmreq)

#ifdef __cplusplus
}
#endif

#endif
