/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Attaching to a ring port: what crates/port/src/attach.rs does, in C. */
#define _GNU_SOURCE
#include "nm.h"
#include "ring.h"
#include "vale.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_FDS (RING_FDS - 3)
#define PATIENCE 5 /* seconds that an answer may take */

/* The socket of port `name`; see `socket_path` in crates/port/src/attach.rs. */
static int
socket_path(const char *name, struct sockaddr_un *address)
{
	const char *control = getenv("SIDECORE_SOCKET");
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	size_t room = sizeof(address->sun_path);
	int need;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (strchr(name, '/') != NULL) {
		need = snprintf(address->sun_path, room, "%s", name);
	} else if (control != NULL && *control != '\0') {
		const char *slash = strrchr(control, '/');
		int len = slash ? (int)(slash - control) : 1;

		need = snprintf(address->sun_path, room, "%.*s/ring/%s", len, slash ? control : ".", name);
	} else if (geteuid() != 0 && runtime != NULL && *runtime != '\0') {
		need = snprintf(address->sun_path, room, "%s/sidecore/ring/%s", runtime, name);
	} else {
		need = snprintf(address->sun_path, room, "/run/sidecore/ring/%s", name);
	}
	if (need < 0 || (size_t)need >= room) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return 0;
}

static void
close_all(const int *fds, int count)
{
	int saved = errno;

	while (count-- > 0)
		close(fds[count]);
	errno = saved;
}

/* Connects to the socket of port `name`; the connection, or -1. */
int
ring_call(const char *name)
{
	struct timeval patience = { .tv_sec = PATIENCE };
	struct sockaddr_un address;
	int fd;

	if (socket_path(name, &address) < 0)
		return -1;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close_all(&fd, 1);
		return -1;
	}
	return fd;
}

/* Sends a datagram to the socket `name` beside those of ports, if it is there and we may. */
void
ring_tell(const char *name, const void *text, size_t length)
{
	struct timeval patience = { .tv_sec = PATIENCE };
	struct sockaddr_un address;
	int saved = errno;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && socket_path(name, &address) == 0) {
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
		(void)sendto(fd, text, length, MSG_NOSIGNAL, (struct sockaddr *)&address, sizeof(address));
	}
	if (fd >= 0)
		close(fd);
	errno = saved;
}

/* Connects, asks and reads the answer with its descriptors; the connection, or -1. */
static int
converse(const char *name, struct ring_request *request, struct ring_answer *answer, int *fds, int *count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} space;
	struct iovec part = { .iov_base = answer, .iov_len = sizeof(*answer) };
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof(space.bytes)
	};
	struct cmsghdr *header;
	ssize_t got;
	int control;

	*count = 0;
	request->magic = RING_MAGIC;
	request->version = RING_VERSION;
	control = ring_call(name);
	if (control < 0)
		return -1;
	if (send(control, request, sizeof(*request), MSG_NOSIGNAL) != (ssize_t)sizeof(*request))
		goto fail;
	got = recvmsg(control, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
	if (got < 0)
		goto fail;
	for (header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
		if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
			*count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(header), (size_t)*count * sizeof(int));
		}
	}
	if (got != (ssize_t)sizeof(*answer) || answer->magic != RING_MAGIC || answer->version != RING_VERSION)
		errno = EPROTO;
	else if (answer->error != 0)
		errno = (int)answer->error;
	else
		return control;
	close_all(fds, *count);
fail:
	close_all(&control, 1);
	return -1;
}

/* The port of a name, without a pipe's suffix; which end that names, or 0; and the pipe's own name. */
static uint32_t
split(const char *name, char port[NETMAP_REQ_IFNAMSIZ], const char **pipe)
{
	const char *brace = strrchr(name, '{'), *other = strrchr(name, '}');

	if (brace == NULL || (other != NULL && other > brace))
		brace = other;
	*pipe = brace != NULL ? brace + 1 : "";
	snprintf(port, NETMAP_REQ_IFNAMSIZ, "%.*s", brace ? (int)(brace - name) : NETMAP_REQ_IFNAMSIZ - 1, name);
	return brace == NULL ? 0 : *brace == '{' ? RING_MASTER : RING_SLAVE;
}

/* Has a port of VALE's, or one that a pipe needs, made if it is not there, and keeps it in `held`; its name in `port`. One
 * that is configured can be used without the socket at which others are asked for. */
static int
lease(const char *name, uint32_t end, char port[NETMAP_REQ_IFNAMSIZ], const struct nmreq_register *reg,
    const char *home, int *held)
{
	char inside[NETMAP_REQ_IFNAMSIZ];
	struct vale_ask ask = { .verb = VALE_OPEN, .tx_slots = reg->nr_tx_slots, .rx_slots = reg->nr_rx_slots,
		.tx_rings = reg->nr_tx_rings, .rx_rings = reg->nr_rx_rings };
	struct vale_reply reply = { .error = 0 };
	struct sockaddr_un address;
	int vale = strncmp(name, NM_BDG_NAME, 4) == 0 && strchr(name, ':') != NULL;

	*held = -1;
	if (strchr(name, '/') != NULL || (!vale && end == 0))
		return 0;
	/* In the memory of another port, if it fits into a message. */
	if (home != NULL && end != 0 &&
	    snprintf(inside, sizeof(inside), "%s@%s", name, home) < (int)sizeof(inside))
		name = inside;
	if (vale_ask(name, &ask, &reply, held) == 0) {
		memcpy(port, reply.name, NETMAP_REQ_IFNAMSIZ);
		return 0;
	}
	if ((errno == ENOENT || errno == ECONNREFUSED || errno == EACCES) && socket_path(port, &address) == 0 &&
	    access(address.sun_path, F_OK) == 0)
		return 0;
	if (reply.error != 0)
		nm_set_why(reply.text);
	return -1;
}

int
ring_ask(const char *name, uint32_t ask, uint32_t value, struct ring_answer *answer)
{
	int fds[MAX_FDS], count, control, held;
	char port[NETMAP_REQ_IFNAMSIZ];
	const char *pipe;
	uint32_t end = split(name, port, &pipe);
	struct nmreq_register as_usual = { .nr_mode = NR_REG_ALL_NIC };
	struct ring_request request = { .ask = ask, .value = value };

	if (lease(name, end, port, &as_usual, NULL, &held) < 0)
		return -1;
	control = converse(port, &request, answer, fds, &count);
	if (control >= 0) {
		close_all(fds, count);
		close(control);
		answer->tx_rings -= answer->host_rings;
		answer->rx_rings -= answer->host_rings;
		if (end != 0)
			answer->tx_rings = answer->rx_rings = 1;
	}
	if (held >= 0)
		close_all(&held, 1);
	return control < 0 ? -1 : 0;
}

/* Whether all that the answer names is inside the memory. */
static int
fits(const struct ring_answer *i, int file, int count)
{
	uint64_t rings = i->end != 0 ? 4 : (uint64_t)i->tx_rings + i->rx_rings;
	uint64_t fds = i->end != 0 ? 5 : 1 + 2 * (uint64_t)i->tx_rings + i->rx_rings;
	uint64_t slots = i->tx_slots > i->rx_slots ? i->tx_slots : i->rx_slots;
	struct stat st;
	int seals = fcntl(file, F_GET_SEALS);

	/* A monitor has no rings to send on. Of the others at least one pair is no host ring. */
	return i->tx_rings <= RING_MAX && i->rx_rings <= RING_MAX &&
	    i->host_rings < (i->tx_rings != 0 && i->tx_rings < i->rx_rings ? i->tx_rings : i->rx_rings) &&
	    (uint64_t)count == fds && i->end <= RING_SLAVE &&
	    (i->end == 0 || (i->tx_rings == 1 && i->rx_rings == 1 && i->tx_slots == i->rx_slots)) &&
	    i->interface % 8 == 0 && i->interface + sizeof(struct netmap_if) + 32 <= i->total &&
	    i->tx_slots >= 2 && i->rx_slots >= 2 && slots <= 4096 &&
	    fstat(file, &st) == 0 && (uint64_t)st.st_size == i->total &&
	    seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
	    i->ring_size >= 256 + 16 * slots && i->ring_pool <= i->total && i->buf_pool <= i->total &&
	    i->words <= i->total && i->ring_pool + rings * i->ring_size <= i->total &&
	    i->buf_pool + (uint64_t)i->bufs * i->buf_size <= i->total &&
	    i->words % 128 == 0 && i->words + rings * sizeof(struct ring_words) <= i->total;
}

/* Regions that are mapped; a thread that attaches holds libnetmap's lock. */
static struct ring_memory *memories;

static void
populate(struct ring_memory *m, uint64_t offset, uint64_t len)
{
	uint64_t from = offset & ~(uint64_t)4095;

	if (len > 0 && offset <= m->total && len <= m->total - offset)
		madvise(m->base + from, offset + len - from, 23 /* MADV_POPULATE_WRITE */);
}

/* What the engine has made present for a port shall cost no fault later: all but the buffers of pipes. */
static void
populate_port(struct ring_memory *m, const struct ring_answer *info)
{
	uint64_t rings = info->end != 0 ? 4 : (uint64_t)info->tx_rings + info->rx_rings;

	populate(m, info->ring_pool, rings * info->ring_size);
	populate(m, info->buf_pool + (uint64_t)info->first_buf * info->buf_size, (uint64_t)info->own_bufs * info->buf_size);
}

struct ring_memory *
ring_map(int file, const struct ring_answer *info)
{
	struct ring_memory *m;
	struct stat st;

	if (fstat(file, &st) < 0)
		return NULL;
	for (m = memories; m != NULL; m = m->next) {
		if (m->ino == st.st_ino && m->total == info->total) {
			close(file);
			m->users++;
			populate_port(m, info);
			return m;
		}
	}
	m = calloc(1, sizeof(*m));
	if (m == NULL)
		return NULL;
	m->base = mmap(NULL, info->total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (m->base == MAP_FAILED) {
		free(m);
		return NULL;
	}
	m->total = info->total;
	populate_port(m, info);
	m->ino = st.st_ino;
	m->file = file;
	m->users = 1;
	m->next = memories;
	memories = m;
	return m;
}

static void
unmap(struct ring_memory *m)
{
	struct ring_memory **place;

	if (--m->users > 0)
		return;
	for (place = &memories; *place != m; place = &(*place)->next)
		;
	*place = m->next;
	munmap(m->base, m->total);
	close(m->file);
	free(m);
}

/* The links of a pipe's end: four rings, of which two are ours. */
static void
pipe_links(struct ring_port *port, const int *fds)
{
	const struct ring_answer *info = &port->info;
	struct ring_words *words = (struct ring_words *)(void *)(port->base + info->words);
	char *rings = port->base + info->ring_pool;
	uint32_t first = info->end == RING_MASTER ? 0 : 2, i;

	for (i = 0; i < 2; i++) {
		struct ring_link *link = i == 0 ? &port->tx[0] : &port->rx[0];
		uint32_t mine = first + i, across = 3 - mine;

		*link = (struct ring_link){ .words = words + mine, .num_slots = info->tx_slots, .kick = -1,
			.wake = fds[1 + i], .far = &words[across], .far_wake = fds[4 - i], .sends = i == 0,
			.ring = (struct netmap_ring *)(void *)(rings + (uint64_t)mine * info->ring_size),
			.far_ring = (struct netmap_ring *)(void *)(rings + (uint64_t)across * info->ring_size) };
	}
}

/* Where the client of each ring is. */
static void
find_heads(struct ring_port *port)
{
	uint32_t i;

	for (i = 0; i < port->info.tx_rings; i++)
		ring_moved(&port->tx[i]);
	for (i = 0; i < port->info.rx_rings; i++)
		ring_moved(&port->rx[i]);
}

static void
port_links(struct ring_port *port, const int *fds)
{
	const struct ring_answer *info = &port->info;
	struct ring_words *words = (struct ring_words *)(void *)(port->base + info->words);
	uint32_t i;

	for (i = 0; i < info->tx_rings; i++)
		port->tx[i] = (struct ring_link){ .words = words + i, .num_slots = info->tx_slots,
			.kick = fds[1 + i], .wake = fds[1 + info->tx_rings + i] };
	for (i = 0; i < info->rx_rings; i++)
		port->rx[i] = (struct ring_link){ .words = words + info->tx_rings + i, .num_slots = info->rx_slots,
			.kick = -1, .wake = fds[1 + 2 * info->tx_rings + i] };
}

/* Maps what the descriptors of an answer lead to; they are taken over unless that fails. */
static int
settle_in(struct ring_port *port, const int *fds, int count)
{
	const struct ring_answer *info = &port->info;

	if (count < 1 || !fits(info, fds[0], count)) {
		errno = EPROTO;
		return -1;
	}
	port->memory = ring_map(fds[0], info);
	if (port->memory == NULL)
		return -1;
	port->base = port->memory->base;
	if (info->end != 0)
		pipe_links(port, fds);
	else
		port_links(port, fds);
	find_heads(port);
	return 0;
}

int
ring_fds(const struct ring_port *port, int fds[RING_FDS])
{
	const struct ring_answer *info = &port->info;
	const struct ring_link *tx = port->tx, *rx = port->rx;
	int count = 4;
	uint32_t i;

	fds[0] = port->control;
	fds[1] = port->lease;
	fds[2] = port->host_lease;
	fds[3] = port->memory->file;
	if (info->end != 0) {
		fds[4] = tx->wake;
		fds[5] = rx->wake;
		fds[6] = rx->far_wake;
		fds[7] = tx->far_wake;
		return 8;
	}
	for (i = 0; i < info->tx_rings; i++)
		fds[count++] = tx[i].kick;
	for (i = 0; i < info->tx_rings; i++)
		fds[count++] = tx[i].wake;
	for (i = 0; i < info->rx_rings; i++)
		fds[count++] = rx[i].wake;
	return count;
}

int
ring_adopt(struct ring_port *port, const int *fds, int count)
{
	port->control = fds[0];
	port->lease = fds[1];
	port->host_lease = fds[2];
	return settle_in(port, fds + 3, count - 3);
}

static int
wants_host(const struct nmreq_register *reg)
{
	return reg->nr_mode == NR_REG_SW || reg->nr_mode == NR_REG_NIC_SW || reg->nr_mode == NR_REG_ONE_SW;
}

/* Has the host rings of a port made if they are not there; those that are configured are there anyway. */
static void
lease_host(const char *port, const struct nmreq_register *reg, int *held)
{
	struct vale_ask ask = { .verb = VALE_OPEN, .tx_rings = reg->nr_host_tx_rings, .rx_rings = reg->nr_host_rx_rings };
	struct vale_reply reply = { .error = 0 };
	char name[NETMAP_REQ_IFNAMSIZ + 1];

	if (strchr(port, '/') != NULL)
		return;
	snprintf(name, sizeof(name), "%s^", port);
	if (vale_ask(name, &ask, &reply, held) < 0 && reply.error != 0)
		nm_set_why(reply.text);
}

int
ring_attach(struct ring_port *port, const char *wanted, const struct nmreq_register *reg, const char *home)
{
	struct ring_answer *info = &port->info;
	char name[NETMAP_REQ_IFNAMSIZ], asked[NETMAP_REQ_IFNAMSIZ];
	int fds[MAX_FDS], count = 0;
	const char *pipe;
	uint32_t end = split(wanted, name, &pipe);
	struct ring_request request = { .ask = end != 0 ? RING_PIPE : RING_ATTACH, .value = end,
		.extra_bufs = reg->nr_extra_bufs };
	int monitors = (reg->nr_flags & NM_MONITORS) != 0;

	port->host_lease = -1;
	memcpy(asked, name, sizeof(asked));
	if (lease(wanted, end, name, reg, home, &port->lease) < 0)
		return -1;
	snprintf(port->home, sizeof(port->home), "%s", name);
	if (monitors) {
		request.ask = RING_MONITOR;
		request.value = (reg->nr_flags & (NR_MONITOR_TX | NR_ZCOPY_MON) ? RING_SEES_SENT : 0) |
		    (reg->nr_flags & (NR_MONITOR_RX | NR_ZCOPY_MON) ? RING_SEES_RECEIVED : 0) |
		    (reg->nr_flags & NR_ZCOPY_MON ? RING_SEES_RELEASED : 0) | end << RING_SEES_END_SHIFT;
		end = 0; /* its memory is as that of a port's monitor */
	} else if (wants_host(reg) && end == 0) {
		lease_host(name, reg, &port->host_lease);
	}
	if (reg->nr_flags & NR_EXCLUSIVE)
		request.flags = RING_EXCLUSIVE;
	/* One that lies in another port's memory bears its own port's name there. */
	if (*pipe != '\0' && strcmp(asked, name) != 0)
		snprintf(request.pipe, sizeof(request.pipe), "%s{%s", asked, pipe);
	else
		snprintf(request.pipe, sizeof(request.pipe), "%s", pipe);
	port->control = converse(name, &request, info, fds, &count);
	if (port->control < 0) {
		count = 0;
		goto fail;
	}
	if (info->end != end || monitors != (info->tx_rings == 0)) {
		errno = EPROTO;
		goto fail;
	}
	if (settle_in(port, fds, count) == 0)
		return 0;
fail:
	close_all(fds, count);
	if (port->control >= 0)
		close_all(&port->control, 1);
	if (port->host_lease >= 0)
		close_all(&port->host_lease, 1);
	if (port->lease >= 0)
		close_all(&port->lease, 1);
	return -1;
}

void
ring_detach(struct ring_port *port)
{
	uint32_t i;

	for (i = 0; i < port->info.tx_rings; i++) {
		close(port->info.end != 0 ? port->tx[i].far_wake : port->tx[i].kick);
		close(port->tx[i].wake);
	}
	for (i = 0; i < port->info.rx_rings; i++) {
		if (port->info.end != 0)
			close(port->rx[i].far_wake);
		close(port->rx[i].wake);
	}
	unmap(port->memory);
	close(port->control);
	if (port->host_lease >= 0)
		close(port->host_lease);
	if (port->lease >= 0)
		close(port->lease);
}
