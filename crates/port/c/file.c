/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Descriptors of /dev/netmap: what they are bound to, and what shares it.
 *
 * A descriptor is one end of a pair of sockets, in which its binding lies for a process that inherits it or has it
 * passed (pass.c). Beside it a file has an epoll set of everything that can wake its rings; wait.c waits for that, and
 * does the syncs that netmap does when a thread waits.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES 65536 /* descriptors above this cannot be ports */
#define ALIGN(n) (((n) + 127) & ~(size_t)127)

static _Atomic(struct nm_file *) files[FILES];
static struct nm_port *ports;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct nm_file *
nm_file(int fd)
{
	return fd >= 0 && fd < FILES ? atomic_load_explicit(&files[fd], memory_order_acquire) : NULL;
}

/* The kernel's part of a ring. Indices of one that others use, too, are left as they are. */
static void
init_kring(struct nm_kring *k, struct nm_port *p, uint32_t number, struct ring_link *link, int used)
{
	const struct ring_answer *info = &p->ring.info;

	/* A pipe's end has the first or the last two of its pipe's four rings. */
	number += info->end == RING_SLAVE ? 2 : 0;
	k->ring = (struct netmap_ring *)(void *)(p->ring.base + info->ring_pool + (uint64_t)number * info->ring_size);
	k->link = link;
	k->version = &p->nifp->ni_version;
	k->rhead = k->rcur = ring_start(link);
	if (!used)
		k->ring->head = k->ring->cur = k->rhead;
	k->rtail = k->ring->tail = ring_hwtail(link);
}

static void
init_krings(struct nm_port *p, int used)
{
	const struct ring_answer *info = &p->ring.info;
	uint32_t i;

	p->nifp = (struct netmap_if *)(void *)(p->ring.base + info->interface);
	for (i = 0; i < info->tx_rings; i++)
		init_kring(&p->tx[i], p, i, &p->ring.tx[i], used);
	for (i = 0; i < info->rx_rings; i++)
		init_kring(&p->rx[i], p, info->tx_rings + i, &p->ring.rx[i], used);
	p->users = 1;
	p->next = ports;
	ports = p;
}

/* The port of this process whose memory has this number, if there is one: of its pipes, that which has them. */
static const char *
home_of(uint32_t memory)
{
	const struct nm_port *p;

	for (p = ports; p != NULL && memory != 0; p = p->next) {
		if (p->ring.info.mem_id == memory && p->ring.home[0] != '\0' && strchr(p->ring.home, '/') == NULL)
			return p->ring.home;
	}
	return NULL;
}

static struct nm_port *
find_or_attach(const char *name, const struct nmreq_register *reg)
{
	/* Each monitor is one of its own, and so is each null port: it has no name here. */
	int alone = (reg->nr_flags & NM_MONITORS) != 0 || reg->nr_mode == NR_REG_NULL;
	struct nm_port *p;

	for (p = ports; p != NULL; p = p->next) {
		if (!alone && strcmp(p->name, name) == 0) {
			p->users++;
			return p;
		}
	}
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return NULL;
	if ((reg->nr_mode == NR_REG_NULL ? ring_null : ring_attach)(&p->ring, name, reg, home_of(reg->nr_mem_id)) < 0) {
		free(p);
		return NULL;
	}
	if (!alone)
		strncpy(p->name, name, sizeof(p->name) - 1);
	init_krings(p, p->ring.info.users > 0);
	return p;
}

/* The word of extra buffer `buf` that names the next one, or NULL if there is no such buffer. */
static uint32_t *
extra_buffer(const struct nm_port *p, uint32_t buf)
{
	const struct ring_answer *info = &p->ring.info;

	return buf < 2 || buf >= info->bufs ? NULL :
	    (uint32_t *)(void *)(p->ring.base + info->buf_pool + (uint64_t)buf * info->buf_size);
}

/* Cuts the list of extra buffers behind the first `count`; the others are kept for the next client. How many there are.
 * */
static uint32_t
cut_extra(struct nm_port *p, uint32_t count)
{
	uint32_t *link = &p->nifp->ni_bufs_head, found;

	count = count < p->ring.info.extra_bufs ? count : p->ring.info.extra_bufs;
	for (found = 0; found < count && extra_buffer(p, *link) != NULL; found++)
		link = extra_buffer(p, *link);
	p->rest = *link;
	*link = 0;
	return found;
}

/* Puts them back behind what the program has left in its list. */
static void
return_extra(struct nm_port *p)
{
	uint32_t *link = &p->nifp->ni_bufs_head, n;

	if (p->rest == 0)
		return;
	for (n = 0; n < p->ring.info.bufs && extra_buffer(p, *link) != NULL; n++)
		link = extra_buffer(p, *link);
	*link = p->rest;
}

static void
leave(struct nm_port *p)
{
	struct nm_port **place;

	if (--p->users > 0)
		return;
	return_extra(p);
	for (place = &ports; *place != p; place = &(*place)->next)
		;
	*place = p->next;
	ring_detach(&p->ring);
	free(p);
}

/* The pairs of rings from `first` on before `last`, as far as there are that many of each direction. */
static void
choose_pairs(struct nm_file *f, const struct ring_answer *info, uint32_t first, uint32_t last)
{
	uint16_t txs = (uint16_t)info->tx_rings, rxs = (uint16_t)info->rx_rings;

	f->first_tx = first < txs ? (uint16_t)first : txs;
	f->first_rx = first < rxs ? (uint16_t)first : rxs;
	f->last_tx = last < txs ? (uint16_t)last : txs;
	f->last_rx = last < rxs ? (uint16_t)last : rxs;
}

static int
choose_rings(struct nm_file *f, const struct nm_port *p, const struct nmreq_register *reg)
{
	const struct ring_answer *info = &p->ring.info;
	uint32_t host = info->host_rings, own = info->rx_rings - host, ring = reg->nr_ringid;

	if (reg->nr_mode == NR_REG_SW || reg->nr_mode == NR_REG_NIC_SW || reg->nr_mode == NR_REG_ONE_SW) {
		if (info->end != 0 || info->tx_rings == 0)
			return EINVAL;
		if (host == 0) {
			if (!nm_has_why())
				nm_set_why("the port has no host rings, or was opened without them before; "
				    "see \"Host rings\" in netmap.md");
			return EOPNOTSUPP;
		}
	}
	switch (reg->nr_mode) {
	case NR_REG_DEFAULT:
	case NR_REG_ALL_NIC:
		choose_pairs(f, info, 0, own);
		break;
	case NR_REG_ONE_NIC:
		if (ring >= own)
			return EINVAL;
		choose_pairs(f, info, ring, ring + 1);
		break;
	case NR_REG_NULL:
		choose_pairs(f, info, 0, 0);
		break;
	case NR_REG_SW:
		choose_pairs(f, info, own, own + host);
		break;
	case NR_REG_NIC_SW:
		choose_pairs(f, info, 0, own + host);
		break;
	case NR_REG_ONE_SW:
		if (ring >= host)
			return EINVAL;
		choose_pairs(f, info, own + ring, own + ring + 1);
		break;
	default:
		return EINVAL;
	}
	if (info->header != 0 && !(reg->nr_flags & NR_ACCEPT_VNET_HDR))
		return EIO;
	if (reg->nr_flags & NR_RX_RINGS_ONLY)
		f->first_tx = f->last_tx = 0;
	if (reg->nr_flags & NR_TX_RINGS_ONLY)
		f->first_rx = f->last_rx = 0;
	f->no_tx_poll = (reg->nr_flags & (NR_NO_TX_POLL | NETMAP_NO_TX_POLL)) != 0;
	f->exclusive = (reg->nr_flags & NR_EXCLUSIVE) != 0;
	return 0;
}

/* Counts the file among the users of its rings, or not any more. EBUSY if one wants a ring for itself. */
static int
use_rings(struct nm_file *f, struct nm_port *p, int add)
{
	struct nm_kring *k;
	uint16_t i;
	int pass;

	/* All are looked at before one is counted. */
	for (pass = add > 0 ? 0 : 1; pass < 2; pass++) {
		for (i = 0; i < RING_MAX * 2; i++) {
			int tx = i < RING_MAX;
			uint16_t n = tx ? i : (uint16_t)(i - RING_MAX);

			if (n < (tx ? f->first_tx : f->first_rx) || n >= (tx ? f->last_tx : f->last_rx))
				continue;
			k = tx ? &p->tx[n] : &p->rx[n];
			if (pass == 0 && (k->exclusive || (f->exclusive && k->users > 0)))
				return EBUSY;
			if (pass == 1) {
				k->users += add;
				k->exclusive = add > 0 ? f->exclusive : 0;
			}
		}
	}
	return 0;
}

/*
 * A file that has not all rings of its port gets an interface of its own, in which the others are not there: programs
 * tell by that which rings they have. There is room for some behind the interfaces of the port and its pipes.
 */
static struct netmap_if *
own_interface(struct nm_file *f, struct nm_port *p)
{
	const struct ring_answer *info = &p->ring.info;
	/* Without host rings each direction has a place for one all the same, and a monitor has one to send on. */
	size_t fake = info->host_rings == 0, txs = info->tx_rings > 0 ? info->tx_rings : 1, rxs_at = txs + fake;
	size_t count = txs + info->rx_rings + 2, size = ALIGN(sizeof(struct netmap_if) + 8 * count);
	size_t first = info->interface + size + (size_t)256 * info->pipes, i;
	int whole = f->first_tx == 0 && f->last_tx == info->tx_rings && f->first_rx == 0 && f->last_rx == info->rx_rings;
	struct netmap_if *own;
	ssize_t *ofs;

	f->spare = -1;
	if (whole || info->end != 0)
		return p->nifp;
	for (i = 0; i < 32 && (p->spare & (1u << i)) != 0; i++)
		;
	if (i == 32 || first + (i + 1) * size > info->ring_pool)
		return p->nifp;
	p->spare |= 1u << i;
	f->spare = (int)i;
	own = (struct netmap_if *)(void *)(p->ring.base + first + i * size);
	memcpy(own, p->nifp, sizeof(*own));
	own->ni_bufs_head = 0;
	ofs = (ssize_t *)(void *)(own + 1);
	for (i = 0; i < count; i++) {
		size_t rx = i - rxs_at;
		int has = i < txs ? info->tx_rings == 0 || (i >= f->first_tx && i < f->last_tx) :
		    i >= rxs_at && rx < info->rx_rings && rx >= f->first_rx && rx < f->last_rx;

		ofs[i] = has ? p->nifp->ring_ofs[i] + (ssize_t)((char *)p->nifp - (char *)own) : 0;
	}
	return own;
}

static int
watch(int set, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	/* A binding that was taken back may have left it there. */
	return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EEXIST ? errno : 0;
}

/* The set becomes readable when the daemon ends, or a ring of the file's wakes us. Others of the same port may have the
 * same descriptors in their sets. */
static int
watch_all(struct nm_file *f, struct nm_port *p)
{
	int error = watch(f->set, p->ring.control);
	uint16_t i;

	for (i = f->first_tx; error == 0 && i < f->last_tx; i++)
		error = watch(f->set, p->ring.tx[i].wake);
	for (i = f->first_rx; error == 0 && i < f->last_rx; i++)
		error = watch(f->set, p->ring.rx[i].wake);
	return error;
}

int
nm_bind(struct nm_file *f, const char *name, struct nmreq_register *reg)
{
	const struct ring_answer *info;
	struct netmap_if *nifp;
	struct nm_port *p;
	int error;

	pthread_mutex_lock(&lock);
	p = f->port == NULL ? find_or_attach(name, reg) : NULL;
	if (p == NULL) {
		error = f->port != NULL ? EBUSY : errno;
	} else if ((error = choose_rings(f, p, reg)) != 0 || (error = use_rings(f, p, 1)) != 0) {
		leave(p);
	} else if ((error = watch_all(f, p)) != 0) {
		use_rings(f, p, -1);
		leave(p);
	}
	if (error != 0) {
		pthread_mutex_unlock(&lock);
		return error;
	}
	nifp = own_interface(f, p);
	info = &p->ring.info;
	reg->nr_offset = (uint64_t)((char *)nifp - p->ring.base);
	reg->nr_memsize = info->memsize;
	reg->nr_tx_slots = info->tx_slots;
	reg->nr_rx_slots = info->rx_slots;
	reg->nr_tx_rings = (uint16_t)p->nifp->ni_tx_rings;
	reg->nr_rx_rings = (uint16_t)p->nifp->ni_rx_rings;
	reg->nr_host_tx_rings = (uint16_t)p->nifp->ni_host_tx_rings;
	reg->nr_host_rx_rings = (uint16_t)p->nifp->ni_host_rx_rings;
	reg->nr_mem_id = (uint16_t)info->mem_id;
	/* They are the first descriptor's. */
	reg->nr_extra_bufs = p->users == 1 ? cut_extra(p, reg->nr_extra_bufs) : 0;
	f->port = p;
	/* A null port is the process's own. */
	if (reg->nr_mode != NR_REG_NULL)
		nm_post(f);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* The file of a descriptor. */
static struct nm_file *
new_file(int post)
{
	struct nm_file *f = calloc(1, sizeof(*f));

	if (f == NULL)
		return NULL;
	*f = (struct nm_file){ .refs = 1, .spare = -1, .post = post, .set = epoll_create1(EPOLL_CLOEXEC) };
	if (f->set >= 0)
		return f;
	free(f);
	return NULL;
}

static void
free_file(struct nm_file *f)
{
	if (f->post >= 0)
		syscall(SYS_close, f->post);
	syscall(SYS_close, f->set);
	free(f);
}

struct nm_file *
nm_file_or_passed(int fd)
{
	struct nm_file *f = nm_file(fd);
	struct nm_port *p;

	if (f != NULL || fd < 0 || fd >= FILES)
		return f;
	pthread_mutex_lock(&lock);
	f = nm_file(fd) == NULL ? new_file(-1) : NULL;
	p = f != NULL ? nm_receive(fd, f) : NULL;
	if (p != NULL) {
		init_krings(p, 1);
		if (watch_all(f, p) == 0) {
			f->port = p;
			use_rings(f, p, 1);
			atomic_store_explicit(&files[fd], f, memory_order_release);
		} else {
			leave(p);
		}
	}
	if (f != NULL && f->port == NULL)
		free_file(f);
	pthread_mutex_unlock(&lock);
	return nm_file(fd);
}

int
nm_open_device(int flags)
{
	struct nm_file *f;
	int ends[2], saved;

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0)
		return -1;
	f = ends[0] < FILES ? new_file(ends[1]) : NULL;
	/* As a file would be: inherited by other programs unless O_CLOEXEC. */
	if (f == NULL || ((flags & O_CLOEXEC) == 0 && fcntl(ends[0], F_SETFD, 0) < 0)) {
		saved = ends[0] < FILES ? errno : EMFILE;
		syscall(SYS_close, ends[0]);
		if (f != NULL)
			free_file(f);
		else
			syscall(SYS_close, ends[1]);
		errno = saved;
		return -1;
	}
	atomic_store_explicit(&files[ends[0]], f, memory_order_release);
	return ends[0];
}

/* Under the lock. */
static void
unbind(struct nm_file *f)
{
	if (f->port == NULL)
		return;
	if (f->spare >= 0)
		f->port->spare &= ~(1u << f->spare);
	f->spare = -1;
	use_rings(f, f->port, -1);
	leave(f->port);
	f->port = NULL;
}

/* Under the lock. */
static void
drop(struct nm_file *f)
{
	if (--f->refs == 0) {
		unbind(f);
		free_file(f);
	}
}

void
nm_unbind(struct nm_file *f, int fd)
{
	pthread_mutex_lock(&lock);
	nm_withdraw(f, fd);
	unbind(f);
	pthread_mutex_unlock(&lock);
}

void
nm_hold(struct nm_file *f)
{
	f->refs++;
}

void
nm_release(struct nm_file *f)
{
	pthread_mutex_lock(&lock);
	drop(f);
	pthread_mutex_unlock(&lock);
}

void
nm_forget(int fd)
{
	struct nm_file *f;

	nm_epoll_forget(fd);
	pthread_mutex_lock(&lock);
	f = nm_file(fd);
	if (f != NULL) {
		atomic_store_explicit(&files[fd], NULL, memory_order_release);
		drop(f);
	}
	pthread_mutex_unlock(&lock);
}

/* A second descriptor of a file. */
int
nm_share(int old, int fd)
{
	struct nm_file *f;

	if (fd < 0 || fd == old)
		return fd;
	pthread_mutex_lock(&lock);
	f = nm_file(old);
	if (f != NULL && fd < FILES) {
		f->refs++;
		atomic_store_explicit(&files[fd], f, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return fd;
}
