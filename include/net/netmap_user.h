/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What netmap programs use besides the structures: access to rings and buffers, and the calls of the older
 * library (nm_open and its like), which here are functions of libnetmap.
 */
#ifndef SIDECORE_NET_NETMAP_USER_H
#define SIDECORE_NET_NETMAP_USER_H

#include <net/netmap.h>
/* What programs expect to have with this header. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

#define _NETMAP_OFFSET(type, ptr, offset) ((type)(void *)((char *)(ptr) + (offset)))

#define NETMAP_IF(_base, _ofs) _NETMAP_OFFSET(struct netmap_if *, _base, _ofs)
#define NETMAP_TXRING(nifp, index) _NETMAP_OFFSET(struct netmap_ring *, nifp, (nifp)->ring_ofs[index])
#define NETMAP_RXRING(nifp, index) \
	_NETMAP_OFFSET(struct netmap_ring *, nifp, \
		(nifp)->ring_ofs[(index) + (nifp)->ni_tx_rings + (nifp)->ni_host_tx_rings])
#define NETMAP_BUF(ring, index) \
	((char *)(ring) + (ring)->buf_ofs + ((long)(index) * (long)(ring)->nr_buf_size))
#define NETMAP_BUF_IDX(ring, buf) \
	(((char *)(buf) - ((char *)(ring) + (ring)->buf_ofs)) / (ring)->nr_buf_size)
#define NETMAP_ROFFSET(ring, slot) ((slot)->ptr & (ring)->offset_mask)
#define NETMAP_WOFFSET(ring, slot, offset) \
	do { \
		(slot)->ptr = ((slot)->ptr & ~(ring)->offset_mask) | ((offset) & (ring)->offset_mask); \
	} while (0)
#define NETMAP_BUF_OFFSET(ring, slot) (NETMAP_BUF(ring, (slot)->buf_idx) + NETMAP_ROFFSET(ring, slot))

/* The slot after slot i. */
static inline uint32_t
nm_ring_next(struct netmap_ring *r, uint32_t i)
{
	/* Not only where they are equal: memory that was taken away with its port has no slots. */
	return unlikely(i + 1 >= r->num_slots) ? 0 : i + 1;
}

/* Whether there is nothing to receive, or no room to send. */
static inline int
nm_ring_empty(struct netmap_ring *ring)
{
	return ring->head == ring->tail;
}

/* Slots that the program owns. */
static inline uint32_t
nm_ring_space(struct netmap_ring *ring)
{
	int32_t space = (int32_t)ring->tail - (int32_t)ring->head;

	if (space < 0)
		space += (int32_t)ring->num_slots;
	return space < 0 ? 0 : (uint32_t)space;
}

/* Whether something that was given up has not been sent yet. */
static inline int
nm_tx_pending(struct netmap_ring *r)
{
	return nm_ring_next(r, r->tail) != r->head;
}

/* Copies a packet; up to 63 bytes more may be read and written, for which regions have room. */
static inline void
nm_pkt_copy(const void *from, void *to, int len)
{
	int whole = len >= 1024 ? len : (len + 63) & ~63;

	memcpy(to, from, (size_t)whole);
}

#define ND(_fmt, ...) do { } while (0)
#define D(_fmt, ...) \
	do { \
		struct timeval _t0; \
		gettimeofday(&_t0, NULL); \
		fprintf(stderr, "%03d.%06d %s [%d] " _fmt "\n", (int)(_t0.tv_sec % 1000), (int)_t0.tv_usec, \
			__func__, __LINE__, ##__VA_ARGS__); \
	} while (0)
#define RD(lps, format, ...) \
	do { \
		static int _second, _count; \
		struct timeval _now; \
		gettimeofday(&_now, NULL); \
		if (_second != (int)_now.tv_sec) { \
			_second = (int)_now.tv_sec; \
			_count = 0; \
		} \
		if (_count++ < (lps)) \
			D(format, ##__VA_ARGS__); \
	} while (0)

#ifdef NETMAP_WITH_LIBS

struct nm_desc;

struct nm_pkthdr {
	struct timeval ts;
	uint32_t caplen;
	uint32_t len;
	uint64_t flags; /* NM_MORE_PKTS */
	struct nm_desc *d;
	struct netmap_slot *slot;
	uint8_t *buf;
};

struct nm_stat {
	unsigned ps_recv;
	unsigned ps_drop;
	unsigned ps_ifdrop;
};

#define NM_ERRBUF_SIZE 512
#define NM_MORE_PKTS 1

struct nm_desc {
	struct nm_desc *self;
	int fd;
	void *mem;
	uint64_t memsize;
	int done_mmap;
	struct netmap_if *const nifp;
	uint16_t first_tx_ring, last_tx_ring, cur_tx_ring;
	uint16_t first_rx_ring, last_rx_ring, cur_rx_ring;
	struct nmreq req;
	struct nm_pkthdr hdr;
	struct netmap_ring *const some_ring;
	void *const buf_start;
	void *const buf_end;
	int snaplen;
	int promisc;
	int to_ms;
	char *errbuf;
	uint32_t if_flags;
	uint32_t if_reqcap;
	uint32_t if_curcap;
	struct nm_stat st;
	char msg[NM_ERRBUF_SIZE];
};

#define P2NMD(p) ((const struct nm_desc *)(p))
#define IS_NETMAP_DESC(d) ((d) && P2NMD(d)->self == P2NMD(d))
#define NETMAP_FD(d) (P2NMD(d)->fd)

typedef void (*nm_cb_t)(unsigned char *, const struct nm_pkthdr *, const unsigned char *d);

enum {
	NM_OPEN_NO_MMAP = 0x040000,
	NM_OPEN_IFNAME = 0x080000,
	NM_OPEN_ARG1 = 0x100000,
	NM_OPEN_ARG2 = 0x200000,
	NM_OPEN_ARG3 = 0x400000,
	NM_OPEN_RING_CFG = 0x800000
};

/* Opens a port; NULL and errno if that cannot be. `req` says what is wanted: rings of a port that is made on demand, extra
 * buffers (nr_arg3), flags. With a parent and flags, NM_OPEN_RING_CFG, NM_OPEN_ARG2, NM_OPEN_ARG3 and NM_OPEN_IFNAME take from it
 * rings, memory, number of extra buffers (0 without), and name; without a parent NM_OPEN_IFNAME takes the name from `req`. Memory
 * is mapped in any case, once for each region. */
struct nm_desc *nm_open(const char *ifname, const struct nmreq *req, uint64_t flags, const struct nm_desc *parent);
int nm_mmap(struct nm_desc *d, const struct nm_desc *parent);
int nm_close(struct nm_desc *d);
int nm_inject(struct nm_desc *d, const void *buf, size_t size);
int nm_dispatch(struct nm_desc *d, int cnt, nm_cb_t cb, unsigned char *arg);
unsigned char *nm_nextpkt(struct nm_desc *d, struct nm_pkthdr *hdr);

#endif

#ifdef __cplusplus
}
#endif

#endif
