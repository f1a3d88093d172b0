/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Descriptors of /dev/netmap in the hands of other processes: passed by SCM_RIGHTS, kept through an exec, duplicated by
 * fcntl. In netmap the kernel knows what such a descriptor is bound to; here only the process that bound it does. So
 * the descriptor is one end of a pair of sockets, and the binding lies in its queue as a message that is never taken
 * out, with all descriptors that the port is made of. A process that gets the descriptor peeks: the kernel gives it
 * descriptors of its own each time (unix(7), recv(2) on MSG_PEEK). The port's connection to the daemon is among them,
 * so the port is there until the last holder has gone.
 *
 * Indices need no message: what has been handed over stands in the ring's words (`ring_moved`).
 *
 * The message is as trustworthy as the process that passed the descriptor; all that it says of the memory is checked as
 * an answer of the daemon's is.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PASSED_MAGIC 0x70616d6eu /* "nmap" */
#define PASSED_VERSION 1

/* What a descriptor is bound to. The descriptors beside it: as `ring_fds` has them, without leases that are not there. */
struct passed {
	uint32_t magic, version;
	struct ring_answer info;
	uint16_t first_tx, last_tx, first_rx, last_rx;
	uint8_t no_tx_poll, exclusive, lease, host_lease;
};

union space {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(RING_FDS * sizeof(int))];
};

void
nm_post(const struct nm_file *f)
{
	struct passed p = { .magic = PASSED_MAGIC, .version = PASSED_VERSION, .info = f->port->ring.info,
		.first_tx = f->first_tx, .last_tx = f->last_tx, .first_rx = f->first_rx, .last_rx = f->last_rx,
		.no_tx_poll = (uint8_t)f->no_tx_poll, .exclusive = (uint8_t)f->exclusive,
		.lease = f->port->ring.lease >= 0, .host_lease = f->port->ring.host_lease >= 0 };
	struct iovec part = { .iov_base = &p, .iov_len = sizeof(p) };
	union space space;
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes };
	struct cmsghdr *header;
	int fds[RING_FDS], count = ring_fds(&f->port->ring, fds), i, used = 0;

	for (i = 0; i < count; i++) {
		if (fds[i] >= 0)
			fds[used++] = fds[i];
	}
	memset(&space, 0, sizeof(space));
	message.msg_controllen = CMSG_SPACE((size_t)used * sizeof(int));
	header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN((size_t)used * sizeof(int));
	memcpy(CMSG_DATA(header), fds, (size_t)used * sizeof(int));
	/* Refused where too many descriptors are under way (ETOOMANYREFS): then this one is of use here only. */
	if (sendmsg(f->post, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;
}

void
nm_withdraw(const struct nm_file *f, int fd)
{
	char byte;

	if (f->post < 0)
		return;
	while (recv(fd, &byte, 1, MSG_DONTWAIT) >= 0)
		;
}

static void
close_all(const int *fds, int count)
{
	while (count-- > 0)
		syscall(SYS_close, fds[count]);
}

/* What lies in the queue of `fd`: how many descriptors it has brought, or -1. */
static int
peek(int fd, struct passed *p, int fds[RING_FDS])
{
	struct iovec part = { .iov_base = p, .iov_len = sizeof(*p) };
	union space space;
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes,
		.msg_controllen = sizeof(space.bytes) };
	struct cmsghdr *header;
	ssize_t got = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int count = 0;

	if (got < 0)
		return -1;
	for (header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
		if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
			count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(header), (size_t)count * sizeof(int));
		}
	}
	if (got == (ssize_t)sizeof(*p) && p->magic == PASSED_MAGIC && p->version == PASSED_VERSION)
		return count;
	close_all(fds, count);
	return -1;
}

struct nm_port *
nm_receive(int fd, struct nm_file *f)
{
	int fds[RING_FDS + 2], all[RING_FDS + 2], count, at = 1, i = 1;
	struct nm_port *port;
	struct passed p;

	count = peek(fd, &p, fds);
	if (count < 0)
		return NULL;
	port = calloc(1, sizeof(*port));
	/* Back to fixed places: the connection, both leases, and the rest. */
	if (port != NULL && count > 1 + (p.lease != 0) + (p.host_lease != 0)) {
		all[0] = fds[0];
		all[1] = p.lease ? fds[at++] : -1;
		all[2] = p.host_lease ? fds[at++] : -1;
		for (i = 3; at < count; i++)
			all[i] = fds[at++];
		port->ring.info = p.info;
		if (p.first_tx <= p.last_tx && p.last_tx <= p.info.tx_rings && p.first_rx <= p.last_rx &&
		    p.last_rx <= p.info.rx_rings && ring_adopt(&port->ring, all, i) == 0) {
			f->first_tx = p.first_tx;
			f->last_tx = p.last_tx;
			f->first_rx = p.first_rx;
			f->last_rx = p.last_rx;
			f->no_tx_poll = p.no_tx_poll;
			f->exclusive = p.exclusive;
			return port;
		}
	}
	close_all(fds, count);
	free(port);
	return NULL;
}
