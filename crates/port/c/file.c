/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Descriptors, and the system calls that netmap gives a meaning to: poll, ioctl and close, which this library has under
 * their own names so that programs need not be changed. A call that does not concern a port goes to the kernel at once.
 *
 * A descriptor is an epoll set of everything that can wake its rings, so it is a real one, and whoever waits on
 * it by other means (select, epoll) is woken by what was armed before; the syncs that poll does in netmap are
 * done by poll alone.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536 /* descriptors above this cannot be ports */

static _Atomic(struct nm_file *) files[FILES];
static struct nm_port *ports;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct nm_file *
nm_file(int fd)
{
	return fd >= 0 && fd < FILES ? atomic_load_explicit(&files[fd], memory_order_acquire) : NULL;
}

static void
init_kring(struct nm_kring *k, struct nm_port *p, uint32_t number, struct ring_link *link)
{
	const struct ring_answer *info = &p->ring.info;

	/* A pipe's end has the first or the last two of its pipe's four rings. */
	number += info->end == RING_SLAVE ? 2 : 0;
	k->ring = (struct netmap_ring *)(void *)(p->ring.base + info->ring_pool + (uint64_t)number * info->ring_size);
	k->link = link;
	k->rhead = k->rcur = k->ring->head = k->ring->cur = ring_start(link);
	k->rtail = k->ring->tail = ring_hwtail(link);
}

static struct nm_port *
find_or_attach(const char *name)
{
	struct nm_port *p;
	uint32_t i;

	for (p = ports; p != NULL; p = p->next) {
		if (strcmp(p->name, name) == 0) {
			p->users++;
			return p;
		}
	}
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return NULL;
	if (ring_attach(&p->ring, name) < 0) {
		free(p);
		return NULL;
	}
	strncpy(p->name, name, sizeof(p->name) - 1);
	p->nifp = (struct netmap_if *)(void *)(p->ring.base + p->ring.info.interface);
	for (i = 0; i < p->ring.info.tx_rings; i++)
		init_kring(&p->tx[i], p, i, &p->ring.tx[i]);
	for (i = 0; i < p->ring.info.rx_rings; i++)
		init_kring(&p->rx[i], p, p->ring.info.tx_rings + i, &p->ring.rx[i]);
	p->users = 1;
	p->next = ports;
	ports = p;
	return p;
}

static void
leave(struct nm_port *p)
{
	struct nm_port **place;

	if (--p->users > 0)
		return;
	for (place = &ports; *place != p; place = &(*place)->next)
		;
	*place = p->next;
	ring_detach(&p->ring);
	free(p);
}

static int
choose_rings(struct nm_file *f, const struct nmreq_register *reg)
{
	const struct ring_answer *info = &f->port->ring.info;
	uint16_t txs = (uint16_t)info->tx_rings, rxs = (uint16_t)info->rx_rings;

	f->last_tx = txs;
	f->last_rx = rxs;
	switch (reg->nr_mode) {
	case NR_REG_ALL_NIC:
		break;
	case NR_REG_ONE_NIC:
		if (reg->nr_ringid >= txs && reg->nr_ringid >= rxs)
			return EINVAL;
		f->first_tx = reg->nr_ringid < txs ? reg->nr_ringid : txs;
		f->first_rx = reg->nr_ringid < rxs ? reg->nr_ringid : rxs;
		f->last_tx = f->first_tx < txs ? f->first_tx + 1 : txs;
		f->last_rx = f->first_rx < rxs ? f->first_rx + 1 : rxs;
		break;
	case NR_REG_NULL:
		f->last_tx = f->last_rx = 0;
		break;
	default: /* host rings and pipes */
		return EOPNOTSUPP;
	}
	if (reg->nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON))
		return EOPNOTSUPP;
	if (info->header != 0 && !(reg->nr_flags & NR_ACCEPT_VNET_HDR))
		return EIO;
	if (reg->nr_flags & NR_RX_RINGS_ONLY)
		f->first_tx = f->last_tx = 0;
	if (reg->nr_flags & NR_TX_RINGS_ONLY)
		f->first_rx = f->last_rx = 0;
	f->no_tx_poll = (reg->nr_flags & (NR_NO_TX_POLL | NETMAP_NO_TX_POLL)) != 0;
	return 0;
}

static int
watch(int set, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

int
nm_bind(const char *name, struct nmreq_register *reg, struct nm_file **file)
{
	struct nm_file *f = calloc(1, sizeof(*f));
	const struct ring_answer *info;
	int fd = -1, error;
	uint16_t i;

	if (f == NULL)
		return -1;
	pthread_mutex_lock(&lock);
	f->port = find_or_attach(name);
	if (f->port == NULL)
		goto fail;
	error = choose_rings(f, reg);
	if (error == 0 && (fd = epoll_create1(EPOLL_CLOEXEC)) < 0)
		error = errno;
	if (error == 0 && fd >= FILES)
		error = EMFILE;
	if (error == 0) {
		error = watch(fd, f->port->ring.control) < 0 ? errno : 0;
		for (i = f->first_tx; error == 0 && i < f->last_tx; i++)
			error = watch(fd, f->port->ring.tx[i].wake) < 0 ? errno : 0;
		for (i = f->first_rx; error == 0 && i < f->last_rx; i++)
			error = watch(fd, f->port->ring.rx[i].wake) < 0 ? errno : 0;
	}
	if (error != 0) {
		if (fd >= 0)
			syscall(SYS_close, fd);
		leave(f->port);
		errno = error;
		goto fail;
	}
	info = &f->port->ring.info;
	reg->nr_offset = info->interface;
	reg->nr_memsize = info->memsize;
	reg->nr_tx_slots = info->tx_slots;
	reg->nr_rx_slots = info->rx_slots;
	reg->nr_tx_rings = (uint16_t)info->tx_rings;
	reg->nr_rx_rings = (uint16_t)info->rx_rings;
	reg->nr_host_tx_rings = reg->nr_host_rx_rings = 1;
	reg->nr_mem_id = (uint16_t)info->mem_id;
	reg->nr_extra_bufs = info->extra_bufs;
	atomic_store_explicit(&files[fd], f, memory_order_release);
	pthread_mutex_unlock(&lock);
	*file = f;
	return fd;
fail:
	pthread_mutex_unlock(&lock);
	free(f);
	return -1;
}

int
nm_unbind(int fd)
{
	struct nm_file *f;

	pthread_mutex_lock(&lock);
	f = nm_file(fd);
	if (f != NULL) {
		atomic_store_explicit(&files[fd], NULL, memory_order_release);
		leave(f->port);
		free(f);
	}
	pthread_mutex_unlock(&lock);
	return (int)syscall(SYS_close, fd);
}

/* PORT_INFO_GET, PORT_HDR_GET and PORT_HDR_SET, of any port. */
static int
control(struct nmreq_header *header)
{
	struct ring_answer info;
	struct nmreq_port_hdr *hdr = (void *)(uintptr_t)header->nr_body;
	struct nmreq_port_info_get *body = (void *)(uintptr_t)header->nr_body;
	int set = header->nr_reqtype == NETMAP_REQ_PORT_HDR_SET;

	if (header->nr_version < NETMAP_MIN_API || header->nr_version > NETMAP_MAX_API || header->nr_body == 0) {
		errno = EINVAL;
		return -1;
	}
	if (header->nr_options != 0) {
		errno = EOPNOTSUPP;
		return -1;
	}
	switch (header->nr_reqtype) {
	case NETMAP_REQ_PORT_HDR_SET:
	case NETMAP_REQ_PORT_HDR_GET:
		if (ring_ask(header->nr_name, set ? RING_SET_HEADER : RING_INFO, set ? hdr->nr_hdr_len : 0, &info) < 0)
			return -1;
		hdr->nr_hdr_len = info.header;
		return 0;
	case NETMAP_REQ_PORT_INFO_GET:
		if (ring_ask(header->nr_name, RING_INFO, 0, &info) < 0)
			return -1;
		memset(body, 0, sizeof(*body));
		body->nr_memsize = info.memsize;
		body->nr_tx_slots = info.tx_slots;
		body->nr_rx_slots = info.rx_slots;
		body->nr_tx_rings = (uint16_t)info.tx_rings;
		body->nr_rx_rings = (uint16_t)info.rx_rings;
		body->nr_host_tx_rings = body->nr_host_rx_rings = 1;
		body->nr_mem_id = (uint16_t)info.mem_id;
		return 0;
	case NETMAP_REQ_REGISTER: /* these descriptors are bound from the start */
		errno = EBUSY;
		return -1;
	default:
		errno = EOPNOTSUPP;
		return -1;
	}
}

int
nm_ioctl(struct nm_file *f, unsigned long request, void *arg)
{
	uint16_t i;

	switch (request) {
	case NIOCTXSYNC: /* a reset is not an error here, as in netmap */
		for (i = f->first_tx; i < f->last_tx; i++)
			nm_txsync(f->port, &f->port->tx[i]);
		return 0;
	case NIOCRXSYNC:
		for (i = f->first_rx; i < f->last_rx; i++)
			nm_rxsync(&f->port->rx[i]);
		return 0;
	case NIOCCTRL:
		return control(arg);
	default:
		errno = ENOTTY;
		return -1;
	}
}

/* The syncs of a poll; what is ready. */
static short
look(struct nm_file *f, short events)
{
	struct nm_port *p = f->port;
	short ready = 0;
	uint16_t i;

	if ((events & POLLOUT) || !f->no_tx_poll) {
		for (i = f->first_tx; i < f->last_tx; i++) {
			struct nm_kring *k = &p->tx[i];

			/* Who does not want to send is flushed, no more. */
			if (!(events & POLLOUT) && k->ring->head == k->rhead)
				continue;
			if (nm_txsync(p, k) < 0)
				ready |= POLLERR;
			if ((events & POLLOUT) && k->ring->cur != k->ring->tail)
				ready |= POLLOUT;
		}
	}
	if (events & POLLIN) {
		for (i = f->first_rx; i < f->last_rx; i++) {
			struct nm_kring *k = &p->rx[i];

			if (nm_rxsync(k) < 0)
				ready |= POLLERR;
			if (k->ring->cur != k->ring->tail)
				ready |= POLLIN;
		}
	}
	return ready;
}

/* Asks the engine to wake us, or asks no more. True if something moved since `look`. */
static int
arm(struct nm_file *f, short events, int on)
{
	struct nm_port *p = f->port;
	int moved = 0;
	uint16_t i;

	for (i = f->first_tx; (events & POLLOUT) && i < f->last_tx; i++) {
		if (on)
			moved |= ring_arm(p->tx[i].link) != p->tx[i].rtail;
		else
			ring_disarm(p->tx[i].link);
	}
	for (i = f->first_rx; (events & POLLIN) && i < f->last_rx; i++) {
		if (on)
			moved |= ring_arm(p->rx[i].link) != p->rx[i].rtail;
		else
			ring_disarm(p->rx[i].link);
	}
	return moved;
}

/* Whether the daemon has ended. */
static int
is_gone(struct nm_file *f)
{
	struct pollfd fd = { .fd = f->port->ring.control, .events = POLLIN };
	struct timespec now = { 0, 0 };

	return syscall(SYS_ppoll, &fd, 1, &now, NULL, 8) > 0;
}

static int64_t
nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct timespec *
until(int64_t end, struct timespec *left)
{
	int64_t ns;

	if (end < 0)
		return NULL;
	ns = end - nanoseconds();
	if (ns < 0)
		ns = 0;
	left->tv_sec = ns / 1000000000;
	left->tv_nsec = ns % 1000000000;
	return left;
}

/* Looks at all ports among `fds`; how many are ready. */
static int
look_at_all(struct pollfd *fds, nfds_t count)
{
	int ready = 0;
	nfds_t i;

	for (i = 0; i < count; i++) {
		struct nm_file *f = nm_file(fds[i].fd);

		if (f != NULL) {
			fds[i].revents = look(f, fds[i].events);
			ready += fds[i].revents != 0;
		}
	}
	return ready;
}

static int
arm_all(struct pollfd *fds, nfds_t count, int on)
{
	int moved = 0;
	nfds_t i;

	for (i = 0; i < count; i++) {
		struct nm_file *f = nm_file(fds[i].fd);

		if (f != NULL)
			moved |= arm(f, fds[i].events, on);
	}
	return moved;
}

static int
poll_ports(struct pollfd *fds, nfds_t count, nfds_t of_ports, int timeout)
{
	int64_t end = timeout < 0 ? -1 : nanoseconds() + (int64_t)timeout * 1000000;
	struct timespec left, now = { 0, 0 };
	struct pollfd few[16], *real = few;
	int ready = look_at_all(fds, count), moved, result, gone;
	nfds_t i;

	if (ready > 0 && of_ports == count)
		return ready;
	/* The kernel is asked about readability of our sets, and about the others as the program asks. */
	if (count > sizeof(few) / sizeof(few[0]) && (real = malloc(count * sizeof(*real))) == NULL) {
		errno = ENOMEM;
		return -1;
	}
	for (;;) {
		memcpy(real, fds, count * sizeof(*real));
		for (i = 0; i < count; i++) {
			real[i].revents = 0;
			if (nm_file(fds[i].fd) != NULL)
				real[i].events = POLLIN;
		}
		moved = ready == 0 ? arm_all(fds, count, 1) : 0;
		result = (int)syscall(SYS_ppoll, real, count, ready || moved ? &now : until(end, &left), NULL, 8);
		if (ready == 0)
			arm_all(fds, count, 0);
		if (result < 0)
			break;
		ready = look_at_all(fds, count);
		for (gone = 0, i = 0; i < count; i++) {
			struct nm_file *f = nm_file(fds[i].fd);

			if (f == NULL) {
				fds[i].revents = real[i].revents;
				ready += real[i].revents != 0;
			} else if (real[i].revents != 0 && fds[i].revents == 0 && is_gone(f)) {
				fds[i].revents = POLLERR | POLLHUP;
				gone++;
			}
		}
		result = ready + gone;
		if (result > 0 || timeout == 0 || (end >= 0 && nanoseconds() >= end))
			break;
	}
	if (real != few)
		free(real);
	return result;
}

int
poll(struct pollfd *fds, nfds_t count, int timeout)
{
	struct timespec time = { timeout / 1000, (long)(timeout % 1000) * 1000000 };
	nfds_t i, of_ports = 0;

	for (i = 0; i < count; i++)
		of_ports += nm_file(fds[i].fd) != NULL;
	if (of_ports > 0)
		return poll_ports(fds, count, of_ports, timeout);
	return (int)syscall(SYS_ppoll, fds, count, timeout < 0 ? NULL : &time, NULL, 8);
}

int
ioctl(int fd, unsigned long request, ...)
{
	struct nm_file *f = nm_file(fd);
	__builtin_va_list list;
	void *arg;

	__builtin_va_start(list, request);
	arg = __builtin_va_arg(list, void *);
	__builtin_va_end(list);
	if (f != NULL)
		return nm_ioctl(f, request, arg);
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

int
close(int fd)
{
	return nm_file(fd) != NULL ? nm_unbind(fd) : (int)syscall(SYS_close, fd);
}
