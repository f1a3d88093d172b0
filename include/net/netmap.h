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

/* VALE: join a port to a switch, part it, list ports, make a port that stays, poll. */
struct nmreq_vale_attach {
	struct nmreq_register reg;
	uint32_t port_index;
	uint32_t pad1;
};

struct nmreq_vale_detach {
	uint32_t port_index;
	uint32_t pad1;
};

struct nmreq_vale_list {
	uint16_t nr_bridge_idx;
	uint16_t pad1;
	uint32_t nr_port_idx;
};

struct nmreq_vale_newif {
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_mem_id;
	uint16_t pad1;
};

struct nmreq_vale_polling {
	uint32_t nr_mode;
	uint32_t nr_first_cpu_id;
	uint32_t nr_num_polling_cpus;
	uint32_t pad1;
};

#define NETMAP_POLLING_MODE_SINGLE_CPU 1
#define NETMAP_POLLING_MODE_MULTI_CPU 2

struct nmreq_pools_info {
	uint64_t nr_memsize;
	uint16_t nr_mem_id;
	uint16_t pad1[3];
	uint64_t nr_if_pool_offset;
	uint32_t nr_if_pool_objtotal;
	uint32_t nr_if_pool_objsize;
	uint64_t nr_ring_pool_offset;
	uint32_t nr_ring_pool_objtotal;
	uint32_t nr_ring_pool_objsize;
	uint64_t nr_buf_pool_offset;
	uint32_t nr_buf_pool_objtotal;
	uint32_t nr_buf_pool_objsize;
};

struct nmreq_sync_kloop_start {
	uint32_t sleep_us;
	uint32_t pad1;
};

struct nmreq_opt_extmem {
	struct nmreq_option nro_opt;
	uint64_t nro_usrptr;
	struct nmreq_pools_info nro_info;
};

struct nmreq_opt_csb {
	struct nmreq_option nro_opt;
	uint64_t csb_atok;
	uint64_t csb_ktoa;
};

struct nmreq_opt_sync_kloop_eventfds {
	struct nmreq_option nro_opt;
	struct {
		int32_t ioeventfd;
		int32_t irqfd;
	} eventfds[];
};

struct nmreq_opt_sync_kloop_mode {
	struct nmreq_option nro_opt;
	uint32_t mode;
};

#define NM_OPT_SYNC_KLOOP_DIRECT_TX 1
#define NM_OPT_SYNC_KLOOP_DIRECT_RX 2

struct nmreq_opt_offsets {
	struct nmreq_option nro_opt;
	uint64_t nro_max_offset;
	uint64_t nro_initial_offset;
	uint32_t nro_offset_bits;
	uint32_t nro_tx_align;
	uint64_t nro_min_gap;
};

/* Words of a CSB: application to kernel, and back. */
struct nm_csb_atok {
	uint32_t head;
	uint32_t cur;
	uint32_t appl_need_kick;
	uint32_t sync_flags;
	uint32_t pad[12];
};

struct nm_csb_ktoa {
	uint32_t hwcur;
	uint32_t hwtail;
	uint32_t kern_need_kick;
	uint32_t pad[13];
};

#define nm_stst_barrier() __atomic_thread_fence(__ATOMIC_RELEASE)
#define nm_ldld_barrier() __atomic_thread_fence(__ATOMIC_ACQUIRE)

/* The dependent index first: a reader of head has cur, too. */
static inline __attribute__((unused)) void
nm_sync_kloop_appl_write(struct nm_csb_atok *atok, uint32_t cur, uint32_t head)
{
	nm_stst_barrier();
	*(volatile uint32_t *)&atok->cur = cur;
	nm_stst_barrier();
	*(volatile uint32_t *)&atok->head = head;
}

static inline __attribute__((unused)) void
nm_sync_kloop_appl_read(struct nm_csb_ktoa *ktoa, uint32_t *hwtail, uint32_t *hwcur)
{
	*hwtail = *(volatile uint32_t *)&ktoa->hwtail;
	nm_ldld_barrier();
	*hwcur = *(volatile uint32_t *)&ktoa->hwcur;
	nm_ldld_barrier();
}

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
#define NETMAP_BDG_ATTACH 1
#define NETMAP_BDG_DETACH 2
#define NETMAP_BDG_REGOPS 3
#define NETMAP_BDG_LIST 4
#define NETMAP_BDG_VNET_HDR 5
#define NETMAP_BDG_NEWIF 6
#define NETMAP_BDG_DELIF 7
#define NETMAP_PT_HOST_CREATE 8
#define NETMAP_PT_HOST_DELETE 9
#define NETMAP_BDG_POLLING_ON 10
#define NETMAP_BDG_POLLING_OFF 11
#define NETMAP_VNET_HDR_GET 12
#define NETMAP_BDG_HOST 1

#define NM_IFRDATA_LEN 256
struct nm_ifreq {
	char nifr_name[IFNAMSIZ];
	char data[NM_IFRDATA_LEN];
};

#define NIOCTXSYNC _IO('i', 148)
#define NIOCRXSYNC _IO('i', 149)
#define NIOCCTRL _IOWR('i', 151, struct nmreq_header)
#define NIOCGINFO _IOWR('i', 145, struct nmreq)
#define NIOCREGIF _IOWR('i', 146, struct nmreq)
#define NIOCCONFIG _IOWR('i', 150, struct nm_ifreq)

#ifdef __cplusplus
}
#endif

#endif
