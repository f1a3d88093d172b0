/*
 * A CSB and its loop, step by step: what stands in the two arrays after every move. argv: ports A and B, by plain names, on one
 * switch, each with one pair of rings of 8 slots.
 */
#define _GNU_SOURCE
#include "check.h"

#include <libnetmap.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>

static _Alignas(64) struct nm_csb_atok atok[2];
static _Alignas(64) struct nm_csb_ktoa ktoa[2];
static struct nmport_d *a;

static int
request(int fd, uint16_t type, void *body, void *option)
{
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_reqtype = type, .nr_body = (uintptr_t)body,
		.nr_options = (uintptr_t)option };

	return ioctl(fd, NIOCCTRL, &h);
}

static struct nmreq_opt_csb
csb(uint64_t to_kernel, uint64_t to_program)
{
	return (struct nmreq_opt_csb){ .nro_opt = { .nro_reqtype = NETMAP_REQ_OPT_CSB }, .csb_atok = to_kernel,
		.csb_ktoa = to_program };
}

static struct nmreq_opt_sync_kloop_eventfds *events;

static void *
loop(void *result)
{
	struct nmreq_sync_kloop_start body = { .sleep_us = 100 };

	*(int *)result = request(a->fd, NETMAP_REQ_SYNC_KLOOP_START, &body, events) == 0 ? 0 : errno;
	return NULL;
}

/* The program's indices of ring `i`, told to the loop by a kick. */
static void
move(int i, uint32_t cur, uint32_t head)
{
	uint64_t one = 1;

	nm_sync_kloop_appl_write(&atok[i], cur, head);
	CHECK(write(events->eventfds[i].ioeventfd, &one, sizeof(one)) == sizeof(one));
}

/* Waits for the loop's notifications until its indices of ring `i` are these. */
static void
until(int i, uint32_t hwcur, uint32_t hwtail)
{
	uint32_t cur, tail;
	uint64_t count;

	for (;;) {
		nm_sync_kloop_appl_read(&ktoa[i], &tail, &cur);
		if (tail == hwtail && cur == hwcur)
			return;
		if (ask(events->eventfds[i].irqfd, POLLIN, tail == hwtail ? 1 : SOON) == 0 && tail != hwtail)
			break;
		if (ask(events->eventfds[i].irqfd, POLLIN, 0) == POLLIN)
			CHECK(read(events->eventfds[i].irqfd, &count, sizeof(count)) == sizeof(count));
	}
	fprintf(stderr, "ring %d: hwcur %u hwtail %u, not %u %u\n", i, cur, tail, hwcur, hwtail);
	exit(1);
}

int
main(int argc, char **argv)
{
	struct nmreq_opt_csb good = csb((uintptr_t)atok, (uintptr_t)ktoa), bad;
	struct nmreq_sync_kloop_start body = { .sleep_us = 1000001 };
	size_t size = sizeof(*events) + 2 * sizeof(events->eventfds[0]);
	struct netmap_ring *at, *ar, *bt, *br;
	struct nmport_d *b;
	pthread_t thread;
	int result = -1, i;
	unsigned seed = 1;

	if (argc != 3 || (b = nmport_open(argv[2])) == NULL || (events = calloc(1, size)) == NULL)
		return 2;
	events->nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
	events->nro_opt.nro_size = size;
	for (i = 0; i < 2; i++) {
		events->eventfds[i].ioeventfd = eventfd(0, EFD_NONBLOCK);
		events->eventfds[i].irqfd = eventfd(0, EFD_NONBLOCK);
	}

	/* Only for a client that has the port alone, and only in its own memory. */
	CHECK((a = nmport_open(argv[1])) != NULL);
	CHECK(request(a->fd, NETMAP_REQ_CSB_ENABLE, NULL, &good) < 0 && errno == EINVAL && good.nro_opt.nro_status == EINVAL);
	CHECK(request(a->fd, NETMAP_REQ_CSB_ENABLE, NULL, NULL) < 0 && errno == EINVAL);
	CHECK(request(a->fd, NETMAP_REQ_SYNC_KLOOP_START, &body, NULL) < 0 && errno == ENXIO);
	nmport_close(a);
	a = nmport_prepare(argv[1]);
	a->reg.nr_flags |= NR_EXCLUSIVE;
	bad = csb(0x10, 0x800);
	nmreq_push_option(&a->hdr, &bad.nro_opt);
	CHECK(nmport_register(a) < 0 && errno == EINVAL && bad.nro_opt.nro_status == EINVAL);
	bad.csb_atok = bad.csb_ktoa = 0x1000;
	CHECK(nmport_register(a) < 0 && errno == EFAULT);
	nmreq_remove_option(&a->hdr, &bad.nro_opt);

	/* As registered. */
	nmreq_push_option(&a->hdr, &good.nro_opt);
	CHECK(nmport_open_desc(a) == 0 && good.nro_opt.nro_status == 0);
	if (failures > 0)
		return 1;
	nmreq_remove_option(&a->hdr, &good.nro_opt);
	at = NETMAP_TXRING(a->nifp, 0);
	ar = NETMAP_RXRING(a->nifp, 0);
	bt = NETMAP_TXRING(b->nifp, 0);
	br = NETMAP_RXRING(b->nifp, 0);
	CHECK(ktoa[0].hwcur == 0 && ktoa[0].hwtail == 7 && ktoa[1].hwcur == 0 && ktoa[1].hwtail == 0);
	CHECK(atok[0].head == 0 && atok[0].appl_need_kick == 1 && ktoa[0].kern_need_kick == 1);
	/* The CSB takes the place of syncs. */
	CHECK(ioctl(a->fd, NIOCTXSYNC) < 0 && errno == EBUSY && ioctl(a->fd, NIOCRXSYNC) < 0 && errno == EBUSY);
	CHECK(ask(a->fd, POLLIN, 0) == POLLERR);
	CHECK(request(a->fd, NETMAP_REQ_SYNC_KLOOP_START, &body, NULL) < 0 && errno == EINVAL);
	events->nro_opt.nro_size = size - 8;
	body.sleep_us = 0;
	CHECK(request(a->fd, NETMAP_REQ_SYNC_KLOOP_START, &body, events) < 0 && errno == EINVAL);
	events->nro_opt.nro_size = size;

	/* Sent: the loop takes the slot, and gives it back. */
	CHECK(pthread_create(&thread, NULL, loop, &result) == 0);
	put(at, 0, 2, 1, 0);
	move(0, 1, 1);
	until(0, 1, 0);
	await(b->fd, br, 1);
	release(b->fd, br);

	/* Received: hwtail moves, hwcur when the program releases. */
	send_one(b->fd, bt, 1, 2);
	until(1, 0, 1);
	CHECK(ar->slot[0].len == 60);
	move(1, 1, 0);
	send_one(b->fd, bt, 1, 2);
	until(1, 0, 2);
	move(1, 2, 2);
	until(1, 2, 2);

	/* cur ahead of head is one that is being written; both beyond sense move nothing until they change. */
	put(at, 1, 2, 1, 0);
	nm_sync_kloop_appl_write(&atok[0], 2, 1);
	move(0, 2, 2);
	until(0, 2, 1);
	await(b->fd, br, 1);
	release(b->fd, br);
	move(0, 99, 99);
	move(1, 1, 5);
	send_one(b->fd, bt, 1, 2);
	until(1, 2, 3);
	CHECK(ktoa[0].hwcur == 2 && ktoa[0].hwtail == 1);
	move(1, 3, 3);
	until(1, 3, 3);
	put(at, 2, 2, 1, 0);
	move(0, 3, 3);
	until(0, 3, 2);
	await(b->fd, br, 1);
	release(b->fd, br);

	/* One loop at a time; it ends when it is told to. */
	CHECK(request(a->fd, NETMAP_REQ_SYNC_KLOOP_START, &body, events) < 0 && errno == EBUSY);
	CHECK(request(a->fd, NETMAP_REQ_CSB_ENABLE, NULL, &good) < 0 && errno == EBUSY);
	CHECK(request(a->fd, NETMAP_REQ_SYNC_KLOOP_STOP, NULL, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && result == 0);
	/* Told before it starts, it ends at once. Enabled anew, the CSB says where the rings are. */
	CHECK(request(a->fd, NETMAP_REQ_SYNC_KLOOP_STOP, NULL, NULL) == 0);
	loop(&result);
	CHECK(result == 0);
	memset(ktoa, 0xff, sizeof(ktoa));
	CHECK(request(a->fd, NETMAP_REQ_CSB_ENABLE, NULL, &good) == 0);
	CHECK(ktoa[0].hwcur == 3 && ktoa[0].hwtail == 2 && ktoa[1].hwcur == 3 && ktoa[1].hwtail == 3 && atok[0].head == 3);

	/* Values in the middle of an update, whatever they are: the neighbour goes on. */
	CHECK(pthread_create(&thread, NULL, loop, &result) == 0);
	send_one(b->fd, bt, 1, 2);
	until(1, 3, 4);
	for (i = 0; i < 20000; i++) {
		atok[i % 2].head = (uint32_t)rand_r(&seed) % 10;
		atok[i % 2].cur = (uint32_t)rand_r(&seed) % 10;
		if (i % 1000 == 0) {
			send_one(b->fd, bt, 1, 2);
			release(b->fd, br);
		}
	}
	/* Closed while the loop runs: it ends by itself. */
	nmport_undo_open_desc(a);
	CHECK(pthread_join(thread, NULL) == 0 && result == 0);
	CHECK((a = nmport_open(argv[1])) != NULL);
	if (failures > 0)
		return 1;
	send_one(b->fd, bt, 1, 2);
	await(a->fd, NETMAP_RXRING(a->nifp, 0), 1);
	nmport_close(a);
	nmport_close(b);
	return failures != 0;
}
