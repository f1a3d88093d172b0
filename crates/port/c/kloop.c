/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The CSB of a descriptor, and the loop that serves it. In netmap a kernel thread does what the program would do by
 * syncs: it reads the program's indices from one array and writes its own into another. Here the thread that asks for
 * the loop runs it, on this library's syncs, until it is told to stop; the daemon's I/O cores move packets as ever.
 *
 * The arrays are the program's, and so are the indices in them, at any moment: each is read once, in netmap's order, and
 * judged by the sync like those of a ring. One that makes no sense moves nothing until it changes.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONGEST_NAP 50000 /* microseconds until it is looked whether to stop */
#define MOST_SLEEP 1000000

static uint32_t
load(uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void
store(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static uint16_t
rings(const struct nm_file *f)
{
	return (uint16_t)(f->last_tx - f->first_tx + f->last_rx - f->first_rx);
}

/* The descriptor's ring `i`, those to send on first. */
static struct nm_kring *
ring_of(struct nm_file *f, uint16_t i, int *sends)
{
	uint16_t txs = (uint16_t)(f->last_tx - f->first_tx);

	*sends = i < txs;
	return i < txs ? &f->port->tx[f->first_tx + i] : &f->port->rx[f->first_rx + i - txs];
}

static uint32_t
done(struct nm_kring *k, int sends)
{
	return sends ? ring_hwcur(k->link) : k->rhead;
}

/* Whether `len` bytes at `at` are the program's to write. */
static int
is_memory(void *at, size_t len)
{
	struct iovec part = { .iov_base = at, .iov_len = len }, same = part;
	pid_t self = getpid();

	/* Onto itself: the kernel looks whether it can, and says so. */
	return syscall(SYS_process_vm_writev, self, &part, 1, &same, 1, 0) == (long)len;
}

int
nm_csb_enable(struct nm_file *f, int fd, const struct nmreq_opt_csb *option)
{
	struct nm_csb_atok *atok = (void *)(uintptr_t)option->csb_atok;
	struct nm_csb_ktoa *ktoa = (void *)(uintptr_t)option->csb_ktoa;
	uint16_t i, count;
	int sends;

	if (f->port == NULL)
		return ENXIO;
	if (f->looping)
		return EBUSY;
	if (!f->exclusive) {
		nm_set_why("a CSB takes a port that is opened for oneself alone (NR_EXCLUSIVE, /x)");
		return EINVAL;
	}
	if ((option->csb_atok & (sizeof(*atok) - 1)) != 0 || (option->csb_ktoa & (sizeof(*ktoa) - 1)) != 0)
		return EINVAL;
	count = rings(f);
	if (!is_memory(atok, count * sizeof(*atok)) || !is_memory(ktoa, count * sizeof(*ktoa)))
		return EFAULT;
	for (i = 0; i < count; i++) {
		struct nm_kring *k = ring_of(f, i, &sends);

		ktoa[i] = (struct nm_csb_ktoa){ .hwcur = done(k, sends), .hwtail = k->rtail, .kern_need_kick = 1 };
		atok[i].head = k->rhead;
		atok[i].cur = k->rcur;
		atok[i].appl_need_kick = 1;
		atok[i].sync_flags = 1;
	}
	/* The arrays are this process's: no other process can use the descriptor. */
	nm_withdraw(f, fd);
	f->atok = atok;
	f->ktoa = ktoa;
	return 0;
}

/* What the loop remembers of a ring. */
struct served {
	uint32_t head, cur; /* as read last */
	int bad;            /* and they made no sense */
	int kick, irq;      /* eventfds, or -1 */
};

/* Serves ring `i`; whether anything has moved. */
static int
serve(struct nm_file *f, uint16_t i, struct served *s)
{
	struct nm_csb_atok *atok = &f->atok[i];
	struct nm_csb_ktoa *ktoa = &f->ktoa[i];
	int sends, failed;
	struct nm_kring *k = ring_of(f, i, &sends);
	/* cur may be newer than head, never older. */
	uint32_t head = load(&atok->head), cur = load(&atok->cur);
	uint32_t before = k->rhead, tail = k->rtail, hwcur = done(k, sends);
	uint64_t one = 1;

	if (s->bad && head == s->head && cur == s->cur) {
		k->ring->head = k->rhead;
		k->ring->cur = k->rcur;
	} else {
		s->bad = 0;
		k->ring->head = s->head = head;
		k->ring->cur = s->cur = cur;
	}
	failed = sends ? nm_txsync(f->port, k) : nm_rxsync(k);
	if (failed)
		s->bad = 1;
	store(&ktoa->hwcur, done(k, sends));
	store(&ktoa->hwtail, k->rtail);
	if (k->rtail != tail && load(&atok->appl_need_kick) != 0 && s->irq >= 0 &&
	    write(s->irq, &one, sizeof(one)) < 0)
		return 1; /* its counter is full: it is awake */
	return k->rhead != before || k->rtail != tail || done(k, sends) != hwcur;
}

/* Whether the program has moved an index since it was read; it has been asked for kicks before. */
static int
has_news(struct nm_file *f, uint16_t count, const struct served *s)
{
	uint16_t i;

	for (i = 0; i < count; i++)
		store(&f->ktoa[i].kern_need_kick, 1);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	for (i = 0; i < count; i++) {
		if (load(&f->atok[i].head) != s[i].head)
			return 1;
	}
	return 0;
}

/* Waits for kicks, for the daemon, or as long as the program wants. */
static void
nap(int fd, uint16_t count, const struct served *s, uint32_t sleep_us)
{
	struct pollfd fds[2 * RING_MAX + 1];
	struct timespec time;
	uint64_t kicks;
	nfds_t n = 0;
	uint16_t i;
	int all = 1;

	fds[n++] = (struct pollfd){ .fd = fd, .events = POLLIN };
	for (i = 0; i < count; i++) {
		all &= s[i].kick >= 0;
		fds[n++] = (struct pollfd){ .fd = s[i].kick, .events = POLLIN };
	}
	/* Without kicks from all, it is the program's choice how long one may wait. */
	if (all || sleep_us > LONGEST_NAP)
		sleep_us = LONGEST_NAP;
	time = (struct timespec){ .tv_nsec = (long)sleep_us * 1000 };
	if (syscall(SYS_ppoll, fds, n, &time, NULL, 8) <= 0)
		return;
	for (i = 1; i < n; i++) {
		if ((fds[i].revents & POLLIN) && read(fds[i].fd, &kicks, sizeof(kicks)) < 0)
			continue; /* another thread has read it */
	}
}

/* The loop; 0 when it has been stopped, or an errno. */
static int
loop(struct nm_file *f, uint32_t sleep_us, struct served *s)
{
	uint16_t count = rings(f), i;

	/* A process that has closed all its descriptors can stop nothing any more. */
	while (!f->stopping && f->refs > 1) {
		int moved = 0;

		for (i = 0; i < count; i++)
			store(&f->ktoa[i].kern_need_kick, 0);
		for (i = 0; i < count; i++)
			moved |= serve(f, i, &s[i]);
		if (moved || has_news(f, count, s))
			continue;
		if (nm_is_gone(f))
			return ENXIO;
		if (!nm_arm(f, POLLIN | POLLOUT, 1))
			nap(f->set, count, s, sleep_us);
		nm_arm(f, POLLIN | POLLOUT, 0);
	}
	return 0;
}

int
nm_kloop_start(struct nm_file *f, const struct nmreq_sync_kloop_start *body,
    const struct nmreq_opt_sync_kloop_eventfds *events)
{
	struct served *s;
	uint16_t count, i;
	int error, no = 0;

	if (f->port == NULL)
		return ENXIO;
	if (f->atok == NULL) {
		nm_set_why("there is no CSB yet: NETMAP_REQ_CSB_ENABLE, or its option at registration");
		return ENXIO;
	}
	count = rings(f);
	if (body->sleep_us > MOST_SLEEP ||
	    (events != NULL && events->nro_opt.nro_size != sizeof(*events) + count * sizeof(events->eventfds[0])))
		return EINVAL;
	if (!atomic_compare_exchange_strong(&f->looping, &no, 1))
		return EBUSY;
	s = calloc(count > 0 ? count : 1, sizeof(*s));
	error = s == NULL ? ENOMEM : 0;
	for (i = 0; error == 0 && i < count; i++) {
		s[i] = (struct served){ .head = f->atok[i].head, .kick = -1, .irq = -1 };
		if (events != NULL) {
			s[i].kick = events->eventfds[i].ioeventfd;
			s[i].irq = events->eventfds[i].irqfd;
		}
	}
	if (error == 0)
		error = loop(f, body->sleep_us, s);
	free(s);
	f->stopping = 0;
	f->looping = 0;
	return error;
}

/* Also one that is about to start, as in netmap. */
int
nm_kloop_stop(struct nm_file *f)
{
	struct timespec moment = { .tv_nsec = 1000000 };

	if (f->port == NULL)
		return ENXIO;
	f->stopping = 1;
	while (f->looping)
		nanosleep(&moment, NULL);
	return 0;
}
