/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * epoll sets with ports in them, level-triggered whatever is asked, as netmap's are. The set of the port's descriptor is in
 * the kernel's set, marked as ours; what it is ready for is found by the syncs, before and after each wait.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A port in a set. */
struct member {
	struct member *next;
	int set, fd;
	int waits; /* what the kernel's set has in place of the port's descriptor: ours alone */
	struct epoll_event event;
};

static struct member *members;
static _Atomic int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct member **
find(int set, int fd)
{
	struct member **place;

	for (place = &members; *place != NULL && ((*place)->set != set || (*place)->fd != fd); place = &(*place)->next)
		;
	return place;
}

static void
drop(struct member **place)
{
	struct member *m = *place;

	*place = m->next;
	syscall(SYS_close, m->waits);
	free(m);
	atomic_fetch_sub(&count, 1);
}

void
nm_epoll_forget(int fd)
{
	struct member **place;

	if (atomic_load(&count) == 0)
		return;
	pthread_mutex_lock(&lock);
	for (place = &members; *place != NULL;) {
		if ((*place)->set == fd || (*place)->fd == fd)
			drop(place);
		else
			place = &(*place)->next;
	}
	pthread_mutex_unlock(&lock);
}

static int
control(int set, int op, int fd, struct epoll_event *event)
{
	struct member **place = find(set, fd), *m = *place;
	struct epoll_event real = { .events = EPOLLIN };

	if (op == EPOLL_CTL_MOD && m != NULL) {
		m->event = *event;
		return 0;
	}
	if (op == EPOLL_CTL_ADD && m != NULL) {
		errno = EEXIST;
		return -1;
	}
	if (op == EPOLL_CTL_ADD) {
		m = calloc(1, sizeof(*m));
		if (m == NULL)
			return -1;
		*m = (struct member){ .next = members, .set = set, .fd = fd, .event = *event };
		m->waits = (int)syscall(SYS_fcntl, nm_file(fd)->set, F_DUPFD_CLOEXEC, 0);
		real.data.ptr = m;
	}
	/* What makes no sense the kernel refuses. */
	if (syscall(SYS_epoll_ctl, set, op, m != NULL ? m->waits : fd, &real) < 0) {
		if (op == EPOLL_CTL_ADD) {
			int saved = errno;

			syscall(SYS_close, m->waits);
			free(m);
			errno = saved;
		}
		return -1;
	}
	if (op == EPOLL_CTL_ADD) {
		members = m;
		atomic_fetch_add(&count, 1);
	} else if (op == EPOLL_CTL_DEL && m != NULL) {
		drop(place);
	}
	return 0;
}

int
epoll_ctl(int set, int op, int fd, struct epoll_event *event)
{
	int result;

	if (nm_file(fd) == NULL)
		return (int)syscall(SYS_epoll_ctl, set, op, fd, event);
	pthread_mutex_lock(&lock);
	result = control(set, op, fd, event);
	pthread_mutex_unlock(&lock);
	return result;
}

static int
is_ours(const struct epoll_event *event)
{
	struct member *m;

	for (m = members; m != NULL && m != event->data.ptr; m = m->next)
		;
	return m != NULL;
}

static short
wanted(const struct member *m)
{
	return (short)((m->event.events & EPOLLIN ? POLLIN : 0) | (m->event.events & EPOLLOUT ? POLLOUT : 0));
}

/* What the ports of the set are ready for, into at most `max` places of `events`. */
static int
look_at_set(int set, struct epoll_event *events, int max)
{
	struct member *m;
	int ready = 0;

	for (m = members; m != NULL && ready < max; m = m->next) {
		struct nm_file *f = nm_file(m->fd);
		short found;

		if (m->set != set || f == NULL || m->event.events == 0)
			continue;
		found = nm_look(f, wanted(m));
		if (found == 0 && nm_is_gone(f))
			found = POLLERR | POLLHUP;
		if (found == 0)
			continue;
		events[ready++] = (struct epoll_event){ .events = (uint32_t)found, .data = m->event.data };
		if (m->event.events & EPOLLONESHOT)
			m->event.events = 0;
	}
	return ready;
}

static int
arm_set(int set, int on)
{
	struct member *m;
	int moved = 0;

	for (m = members; m != NULL; m = m->next) {
		struct nm_file *f = nm_file(m->fd);

		if (m->set == set && f != NULL)
			moved |= nm_arm(f, wanted(m), on);
	}
	return moved;
}

static int
has_ports(int set)
{
	struct member *m;

	for (m = members; m != NULL && m->set != set; m = m->next)
		;
	return m != NULL;
}

static int64_t
milliseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits for a set with ports in it. */
static int
wait_set(int set, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	int64_t end = timeout < 0 ? -1 : milliseconds() + timeout;

	for (;;) {
		int64_t left = end < 0 ? -1 : end - milliseconds();
		int ready, moved, got, saved, i;

		pthread_mutex_lock(&lock);
		ready = look_at_set(set, events, max);
		moved = ready == 0 ? arm_set(set, 1) : 0;
		pthread_mutex_unlock(&lock);
		if (ready == max)
			return ready;
		if (ready > 0 || moved || (end >= 0 && left < 0))
			left = 0;
		got = (int)syscall(SYS_epoll_pwait, set, events + ready, max - ready, (int)left, mask, 8);
		saved = errno;
		pthread_mutex_lock(&lock);
		if (ready == 0)
			arm_set(set, 0);
		/* What woke us for a port is found by looking. */
		for (i = 0; i < got;) {
			if (is_ours(&events[ready + i]))
				events[ready + i] = events[ready + --got];
			else
				i++;
		}
		if (got >= 0 && ready == 0 && got < max) {
			i = look_at_set(set, events + got, max - got);
			ready += i;
		}
		pthread_mutex_unlock(&lock);
		if (got < 0) {
			errno = saved;
			return ready > 0 ? ready : -1;
		}
		if (ready + got > 0 || (end >= 0 && milliseconds() >= end))
			return ready + got;
	}
}

int
epoll_pwait(int set, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	int ports = 0;

	if (atomic_load(&count) > 0 && max > 0) {
		pthread_mutex_lock(&lock);
		ports = has_ports(set);
		pthread_mutex_unlock(&lock);
	}
	if (ports)
		return wait_set(set, events, max, timeout, mask);
	return (int)syscall(SYS_epoll_pwait, set, events, max, timeout, mask, 8);
}

int
epoll_wait(int set, struct epoll_event *events, int max, int timeout)
{
	return epoll_pwait(set, events, max, timeout, NULL);
}
