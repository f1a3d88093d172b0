/* What the programs share that go step by step: checks that are told and counted, frames, and syncs. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <net/netmap_user.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

static int failures;

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			failures++; \
		} \
	} while (0)
/* head, cur and tail of a ring. */
#define INDICES(r, h, c, t) \
	do { \
		if ((r)->head != (h) || (r)->cur != (c) || (r)->tail != (t)) { \
			fprintf(stderr, "line %d: head %u cur %u tail %u\n", __LINE__, (r)->head, (r)->cur, (r)->tail); \
			failures++; \
		} \
	} while (0)
/* Longer than anything takes that is waited for. */
#define SOON 20000

/* What poll says of a descriptor: 0 after `timeout` milliseconds. */
static inline short
ask(int fd, short events, int timeout)
{
	struct pollfd p = { .fd = fd, .events = events };

	return poll(&p, 1, timeout) == 1 ? p.revents : 0;
}

/* Writes a frame of 60 bytes from client `src` to client `dst` into slot `at`. */
static inline void
put(struct netmap_ring *ring, uint32_t at, unsigned char dst, unsigned char src, uint16_t flags)
{
	unsigned char *p = (unsigned char *)NETMAP_BUF(ring, ring->slot[at].buf_idx);

	memset(p, 0, 60);
	p[0] = p[6] = 2;
	p[5] = dst;
	p[11] = src;
	ring->slot[at].len = 60;
	ring->slot[at].flags = flags;
}

/* Syncs until the engine has taken all that was given up. */
static inline void
drain(int fd, struct netmap_ring *ring)
{
	while (nm_tx_pending(ring))
		ioctl(fd, NIOCTXSYNC);
}

/* Puts a frame into the next slot and sends it. */
static inline void
send_one(int fd, struct netmap_ring *ring, unsigned char dst, unsigned char src)
{
	put(ring, ring->head, dst, src, 0);
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
	CHECK(ioctl(fd, NIOCTXSYNC) == 0);
	drain(fd, ring);
}

/* Waits until `count` slots have come, and no more; nothing else may wake the descriptor. */
static inline void
await(int fd, struct netmap_ring *ring, uint32_t count)
{
	uint32_t cur = ring->cur, tail;

	while (nm_ring_space(ring) < count) {
		tail = ring->cur = ring->tail;
		if (ask(fd, POLLIN, SOON) != POLLIN || ring->tail == tail)
			break;
	}
	ring->cur = cur;
	CHECK(nm_ring_space(ring) == count);
}

/* Releases all that has come. */
static inline void
release(int fd, struct netmap_ring *ring)
{
	ring->head = ring->cur = ring->tail;
	CHECK(ioctl(fd, NIOCRXSYNC) == 0);
}

#endif
