/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * poll, ppoll, select and pselect with ports among their descriptors. As netmap's poll they sync: what is to be sent
 * goes, even if only receiving is asked for, and what has come is seen. If nothing is ready, all rings that are asked about
 * are armed, looked at once more, and the kernel waits for the ports' descriptors like for any others.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FEW 64

short
nm_look(struct nm_file *f, short events)
{
	struct nm_port *p = f->port;
	short ready = 0;
	uint16_t i;

	if (p == NULL || f->atok != NULL)
		return POLLERR;
	if ((events & POLLOUT) || !f->no_tx_poll) {
		for (i = f->first_tx; i < f->last_tx; i++) {
			struct nm_kring *k = &p->tx[i];

			/* A caller that does not want to send is flushed, no more. */
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

int
nm_arm(struct nm_file *f, short events, int on)
{
	struct nm_port *p = f->port;
	int moved = 0;
	uint16_t i;

	if (p == NULL)
		return 0;
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

int
nm_is_gone(struct nm_file *f)
{
	struct pollfd fd = { .events = POLLIN };
	struct timespec now = { 0, 0 };

	if (f->port == NULL)
		return 0;
	fd.fd = f->port->ring.control;
	return syscall(SYS_ppoll, &fd, 1, &now, NULL, 8) > 0;
}

static int64_t
nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What is left until `end`; NULL if there is no end. */
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
			fds[i].revents = nm_look(f, fds[i].events);
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
			moved |= nm_arm(f, fds[i].events, on);
	}
	return moved;
}

/* One wait of the kernel's, with what it says of descriptors that are no ports and of daemons that ended. */
static int
collect(struct pollfd *fds, const struct pollfd *real, nfds_t count)
{
	int ready = look_at_all(fds, count);
	nfds_t i;

	for (i = 0; i < count; i++) {
		struct nm_file *f = nm_file(fds[i].fd);

		if (f == NULL) {
			fds[i].revents = real[i].revents;
			ready += real[i].revents != 0;
		} else if (real[i].revents != 0 && fds[i].revents == 0 && nm_is_gone(f)) {
			fds[i].revents = POLLERR | POLLHUP;
			ready++;
		}
	}
	return ready;
}

/* Waits for `fds`, some of which are ports, until `end`, or for ever if that is negative. */
static int
wait_ports(struct pollfd *fds, nfds_t count, int64_t end, const sigset_t *mask)
{
	struct timespec left, now = { 0, 0 };
	struct pollfd few[FEW], *real = few;
	int result, ready, moved, saved;
	struct nm_file *f;
	nfds_t i;

	if (count > FEW) {
		real = malloc(count * sizeof(*real));
		if (real == NULL)
			return -1;
	}
	for (;;) {
		ready = look_at_all(fds, count);
		/* Nothing but ports, and some are ready: no need for the kernel. */
		for (i = 0; i < count && (fds[i].fd < 0 || nm_file(fds[i].fd) != NULL); i++)
			;
		if (ready > 0 && i == count) {
			for (i = 0; i < count; i++)
				fds[i].revents = fds[i].fd < 0 ? 0 : fds[i].revents;
			result = ready;
			break;
		}
		moved = ready == 0 ? arm_all(fds, count, 1) : 0;
		for (i = 0; i < count; i++) {
			real[i] = fds[i];
			f = nm_file(fds[i].fd);
			if (f != NULL)
				real[i] = (struct pollfd){ .fd = f->set, .events = POLLIN };
			real[i].revents = 0;
		}
		result = (int)syscall(SYS_ppoll, real, count, ready || moved ? &now : until(end, &left), mask, 8);
		saved = errno;
		if (ready == 0)
			arm_all(fds, count, 0);
		if (result < 0) {
			errno = saved;
			break;
		}
		result = collect(fds, real, count);
		if (result > 0 || (end >= 0 && nanoseconds() >= end))
			break;
	}
	if (real != few)
		free(real);
	return result;
}

static int
any_port(const struct pollfd *fds, nfds_t count)
{
	nfds_t i;

	for (i = 0; i < count; i++) {
		if (nm_file(fds[i].fd) != NULL)
			return 1;
	}
	return 0;
}

int
poll(struct pollfd *fds, nfds_t count, int timeout)
{
	struct timespec time = { timeout / 1000, (long)(timeout % 1000) * 1000000 };

	if (any_port(fds, count))
		return wait_ports(fds, count, timeout < 0 ? -1 : nanoseconds() + (int64_t)timeout * 1000000, NULL);
	return (int)syscall(SYS_ppoll, fds, count, timeout < 0 ? NULL : &time, NULL, 8);
}

int
ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec copy; /* the system call changes it */

	if (any_port(fds, count)) {
		int64_t end = timeout == NULL ? -1 :
		    nanoseconds() + (int64_t)timeout->tv_sec * 1000000000 + timeout->tv_nsec;

		return wait_ports(fds, count, end, mask);
	}
	if (timeout != NULL)
		copy = *timeout;
	return (int)syscall(SYS_ppoll, fds, count, timeout == NULL ? NULL : &copy, mask, 8);
}

/* What fortified programs call. */
int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t size);

int
__poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t size)
{
	if (size / sizeof(*fds) < count)
		abort();
	return poll(fds, count, timeout);
}

static int
has(int fd, const fd_set *set)
{
	return set != NULL && FD_ISSET(fd, set);
}

/* select as a poll: descriptors out of the sets and back into them. -2: there is no port among them. */
static int
select_ports(int count, fd_set *in, fd_set *out, fd_set *except, int64_t end, const sigset_t *mask)
{
	struct pollfd fds[FD_SETSIZE];
	nfds_t used = 0, i;
	int fd, ready = 0, ports = 0;

	for (fd = 0; fd < count && fd < FD_SETSIZE; fd++) {
		short events = (short)((has(fd, in) ? POLLIN : 0) | (has(fd, out) ? POLLOUT : 0) |
		    (has(fd, except) ? POLLPRI : 0));

		if (events == 0)
			continue;
		ports |= nm_file(fd) != NULL;
		fds[used++] = (struct pollfd){ .fd = fd, .events = events };
	}
	if (!ports)
		return -2;
	if (wait_ports(fds, used, end, mask) < 0)
		return -1;
	for (i = 0; i < used; i++) {
		/* As the kernel's select takes poll's answers: an error is something to read and to write. */
		int reads = (fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
		int writes = (fds[i].revents & (POLLOUT | POLLERR)) != 0;
		int urgent = (fds[i].revents & POLLPRI) != 0;

		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
		fd = fds[i].fd;
		ready += (has(fd, in) && reads) + (has(fd, out) && writes) + (has(fd, except) && urgent);
		if (in != NULL && !reads)
			FD_CLR(fd, in);
		if (out != NULL && !writes)
			FD_CLR(fd, out);
		if (except != NULL && !urgent)
			FD_CLR(fd, except);
	}
	return ready;
}

int
pselect(int count, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout, const sigset_t *mask)
{
	int64_t end = timeout == NULL ? -1 : nanoseconds() + (int64_t)timeout->tv_sec * 1000000000 + timeout->tv_nsec;
	struct {
		const sigset_t *mask;
		size_t size;
	} signals = { mask, 8 };
	struct timespec copy;
	int result = select_ports(count, in, out, except, end, mask);

	if (result != -2)
		return result;
	if (timeout != NULL)
		copy = *timeout;
	return (int)syscall(SYS_pselect6, count, in, out, except, timeout == NULL ? NULL : &copy, &signals);
}

int
select(int count, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	int64_t end = timeout == NULL ? -1 :
	    nanoseconds() + (int64_t)timeout->tv_sec * 1000000000 + (int64_t)timeout->tv_usec * 1000;
	struct timespec time;
	int result = select_ports(count, in, out, except, end, NULL);

	if (result != -2)
		return result;
	if (timeout != NULL)
		time = (struct timespec){ timeout->tv_sec, timeout->tv_usec * 1000 };
	result = (int)syscall(SYS_pselect6, count, in, out, except, timeout == NULL ? NULL : &time, NULL);
	/* As Linux does: what is left. */
	if (timeout != NULL)
		*timeout = (struct timeval){ time.tv_sec, time.tv_nsec / 1000 };
	return result;
}
