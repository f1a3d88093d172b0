/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Attaching to a ring port, and the protocol of its words: what crates/port/src/{attach,link}.rs does, in C. */
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

#define MAX_FDS (1 + 3 * RING_MAX)
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
lease(const char *name, uint32_t end, char port[NETMAP_REQ_IFNAMSIZ], const struct nmreq_register *reg, int *held)
{
	struct vale_ask ask = { .verb = VALE_OPEN, .tx_slots = reg->nr_tx_slots, .rx_slots = reg->nr_rx_slots,
		.tx_rings = reg->nr_tx_rings, .rx_rings = reg->nr_rx_rings };
	struct vale_reply reply = { .error = 0 };
	struct sockaddr_un address;
	int vale = strncmp(name, NM_BDG_NAME, 4) == 0 && strchr(name, ':') != NULL;

	*held = -1;
	if (strchr(name, '/') != NULL || (!vale && end == 0))
		return 0;
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

	if (lease(name, end, port, &as_usual, &held) < 0)
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

/* Regions that are mapped; whoever attaches holds libnetmap's lock. */
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
			.wake = fds[1 + i], .far = &words[across].client, .far_wake = fds[4 - i], .sends = i == 0,
			.ring = (struct netmap_ring *)(void *)(rings + (uint64_t)mine * info->ring_size),
			.far_ring = (struct netmap_ring *)(void *)(rings + (uint64_t)across * info->ring_size) };
		link->given = atomic_load(&link->words->client.head);
		if (link->given >= link->num_slots)
			link->given = 0;
	}
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
ring_attach(struct ring_port *port, const char *wanted, const struct nmreq_register *reg)
{
	struct ring_answer *info = &port->info;
	char name[NETMAP_REQ_IFNAMSIZ];
	int fds[MAX_FDS], count = 0;
	const char *pipe;
	uint32_t end = split(wanted, name, &pipe);
	struct ring_request request = { .ask = end != 0 ? RING_PIPE : RING_ATTACH, .value = end,
		.extra_bufs = reg->nr_extra_bufs };
	int monitors = (reg->nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX)) != 0;

	port->host_lease = -1;
	if (lease(wanted, end, name, reg, &port->lease) < 0)
		return -1;
	if (monitors) {
		request.ask = RING_MONITOR;
		request.value = (reg->nr_flags & NR_MONITOR_TX ? RING_SEES_SENT : 0) |
		    (reg->nr_flags & NR_MONITOR_RX ? RING_SEES_RECEIVED : 0);
	} else if (wants_host(reg) && end == 0) {
		lease_host(name, reg, &port->host_lease);
	}
	snprintf(request.pipe, sizeof(request.pipe), "%s", pipe);
	port->control = converse(name, &request, info, fds, &count);
	if (port->control < 0) {
		count = 0;
		goto fail;
	}
	if (count < 1 || info->end != end || monitors != (info->tx_rings == 0) || !fits(info, fds[0], count)) {
		errno = EPROTO;
		goto fail;
	}
	port->memory = ring_map(fds[0], info);
	if (port->memory == NULL)
		goto fail;
	port->base = port->memory->base;
	if (end != 0)
		pipe_links(port, fds);
	else
		port_links(port, fds);
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

static const uint64_t one = 1;

/* Hands the slots of a pipe's ring before `head` over, of those sent only whole packets: crates/port/src/pipe.rs, which
 * explains it, in C. */
static void
pipe_give(struct ring_link *link, uint32_t head)
{
	struct netmap_slot *mine = link->ring->slot, *theirs = link->far_ring->slot;
	uint32_t at, ticket, to = link->sends ? link->given : head;

	for (at = link->given; at != head;) {
		uint32_t next = at + 1 == link->num_slots ? 0 : at + 1;

		if (link->sends) {
			/* Compared first: packets that go round in the same buffers write nothing. */
			if (memcmp(&theirs[at], &mine[at], sizeof(*mine)) != 0)
				theirs[at] = mine[at];
			if (!(mine[at].flags & NS_MOREFRAG))
				to = next;
		} else if (mine[at].flags & NS_BUF_CHANGED) {
			theirs[at] = mine[at];
			mine[at].flags &= (uint16_t)~NS_BUF_CHANGED;
		}
		at = next;
	}
	link->given = to;
	atomic_store_explicit(&link->words->client.cur, to, memory_order_relaxed);
	atomic_store_explicit(&link->words->client.head, to, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	ticket = atomic_load_explicit(&link->far->ticket, memory_order_relaxed);
	if (ticket != 0 && ticket != link->answered) {
		link->answered = ticket;
		if (write(link->far_wake, &one, sizeof(one)) < 0)
			return;
	}
}

/* Where the ring across is, or where we are if that makes no sense. */
static uint32_t
pipe_there(struct ring_link *link)
{
	uint32_t head = atomic_load_explicit(&link->far->head, memory_order_acquire);

	return head < link->num_slots ? head : link->given;
}

/* Where a client of the ring starts: 0, unless it was somebody's before. */
uint32_t
ring_start(struct ring_link *link)
{
	return link->far != NULL ? link->given : 0;
}

/* Gives all slots before `head` to the engine, and kicks it if it sleeps and has not been kicked for that. */
void
ring_give(struct ring_link *link, uint32_t head, uint32_t cur)
{
	uint32_t ticket;

	if (link->far != NULL) {
		pipe_give(link, head);
		return;
	}
	atomic_store_explicit(&link->words->client.cur, cur, memory_order_relaxed);
	atomic_store_explicit(&link->words->client.head, head, memory_order_release);
	if (link->kick < 0)
		return;
	/* Between our index and their ticket: one of us sees what the other did. */
	atomic_thread_fence(memory_order_seq_cst);
	ticket = atomic_load_explicit(&link->words->engine.ticket, memory_order_relaxed);
	if (ticket != 0 && ticket != link->answered) {
		link->answered = ticket;
		/* Fails only when the counter is full, and then the engine has been kicked. */
		if (write(link->kick, &one, sizeof(one)) < 0)
			return;
	}
}

static uint32_t
index_of(struct ring_link *link, _Atomic uint32_t *word)
{
	uint32_t value = atomic_load_explicit(word, memory_order_acquire);

	return value < link->num_slots ? value : link->num_slots - 1;
}

uint32_t
ring_hwcur(struct ring_link *link)
{
	if (link->far != NULL)
		return link->sends ? pipe_there(link) : link->given;
	return index_of(link, &link->words->engine.hwcur);
}

uint32_t
ring_hwtail(struct ring_link *link)
{
	if (link->far != NULL) {
		uint32_t there = pipe_there(link);

		return !link->sends ? there : there == 0 ? link->num_slots - 1 : there - 1;
	}
	return index_of(link, &link->words->engine.hwtail);
}

/* Whether the engine has reset the ring since this was asked last. */
int
ring_was_reset(struct ring_link *link)
{
	uint32_t resets = atomic_load_explicit(&link->words->engine.resets, memory_order_acquire);

	if (resets == link->resets)
		return 0;
	link->resets = resets;
	return 1;
}

/* Asks to be woken when hwtail moves; hwtail as it is after that. */
uint32_t
ring_arm(struct ring_link *link)
{
	if (++link->ticket == 0)
		link->ticket = 1;
	atomic_store_explicit(&link->words->client.ticket, link->ticket, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	return ring_hwtail(link);
}

/* Asks no more, and empties the pipe. */
void
ring_disarm(struct ring_link *link)
{
	char bytes[64];

	atomic_store_explicit(&link->words->client.ticket, 0, memory_order_relaxed);
	while (read(link->wake, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes))
		;
}
