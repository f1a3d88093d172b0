/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Descriptors of /dev/netmap, and the system calls that netmap gives a meaning to, under their own names so that
 * programs need not be changed: this library is linked before the C library, or loaded before it. A call that does not
 * concern a port goes to the kernel at once.
 *
 * A descriptor is an epoll set of everything that can wake its rings, so it is a real one that can be inherited,
 * passed on and waited for; wait.c does the syncs that netmap does when somebody waits.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
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
find_or_attach(const char *name, const struct nmreq_register *reg)
{
	int monitors = (reg->nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX)) != 0;
	/* Each monitor is one of its own, and so is each null port: it has no name here. */
	int alone = monitors || reg->nr_mode == NR_REG_NULL;
	struct nm_port *p;
	uint32_t i;

	if (reg->nr_flags & NR_ZCOPY_MON) {
		nm_set_why("a monitor has memory of its own, so its frames are copied: open it without z");
		errno = monitors ? EOPNOTSUPP : EINVAL;
		return NULL;
	}
	for (p = ports; p != NULL; p = p->next) {
		if (!alone && strcmp(p->name, name) == 0) {
			p->users++;
			return p;
		}
	}
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return NULL;
	if ((reg->nr_mode == NR_REG_NULL ? ring_null : ring_attach)(&p->ring, name, reg) < 0) {
		free(p);
		return NULL;
	}
	if (!alone)
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
	/* Without host rings each direction has a place for one all the same. */
	size_t fake = info->host_rings == 0, rxs_at = info->tx_rings + fake;
	size_t count = info->tx_rings + info->rx_rings + 2, size = ALIGN(sizeof(struct netmap_if) + 8 * count);
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
		int has = i < info->tx_rings ? i >= f->first_tx && i < f->last_tx :
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

/* The descriptor becomes readable when the daemon ends, or a ring of the file's wakes us. Others of the same port may
 * have the same descriptors in their sets. */
static int
watch_all(struct nm_file *f, struct nm_port *p, int fd)
{
	int error = watch(fd, p->ring.control);
	uint16_t i;

	for (i = f->first_tx; error == 0 && i < f->last_tx; i++)
		error = watch(fd, p->ring.tx[i].wake);
	for (i = f->first_rx; error == 0 && i < f->last_rx; i++)
		error = watch(fd, p->ring.rx[i].wake);
	return error;
}

int
nm_bind(struct nm_file *f, int fd, const char *name, struct nmreq_register *reg)
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
	} else if ((error = watch_all(f, p, fd)) != 0) {
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
	reg->nr_extra_bufs = p->users == 1 ? info->extra_bufs : 0;
	f->port = p;
	pthread_mutex_unlock(&lock);
	return 0;
}

int
nm_open_device(int flags)
{
	struct nm_file *f = calloc(1, sizeof(*f));
	int fd;

	if (f == NULL)
		return -1;
	f->refs = 1;
	f->spare = -1;
	/* As a file would be: inherited by other programs unless O_CLOEXEC, though those have no port then. */
	fd = epoll_create1(flags & O_CLOEXEC ? EPOLL_CLOEXEC : 0);
	if (fd >= FILES) {
		syscall(SYS_close, fd);
		errno = EMFILE;
		fd = -1;
	}
	if (fd < 0) {
		free(f);
		return -1;
	}
	atomic_store_explicit(&files[fd], f, memory_order_release);
	return fd;
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
		free(f);
	}
}

void
nm_unbind(struct nm_file *f)
{
	pthread_mutex_lock(&lock);
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
static int
share(int old, int fd)
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

static int
is_device(const char *path)
{
	return path != NULL && strcmp(path, NETMAP_DEVICE_NAME) == 0;
}

static int
open_at(int at, const char *path, int flags, mode_t mode)
{
	return is_device(path) ? nm_open_device(flags) : (int)syscall(SYS_openat, at, path, flags, mode);
}

static mode_t
mode_of(int flags, va_list list)
{
	return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

#define OPEN(name, at, parameters, last) \
	int name parameters \
	{ \
		va_list list; \
		mode_t mode; \
		va_start(list, last); \
		mode = mode_of(flags, list); \
		va_end(list); \
		return open_at(at, path, flags, mode); \
	}

OPEN(open, AT_FDCWD, (const char *path, int flags, ...), flags)
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), flags)
OPEN(openat, at, (int at, const char *path, int flags, ...), flags)
OPEN(openat64, at, (int at, const char *path, int flags, ...), flags)

/* What fortified programs call. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);

int
__open_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags, 0);
}

int
__open64_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags, 0);
}

static void *
map_file(struct nm_file *f, void *at, size_t len, int protection, int flags, off_t offset)
{
	/* What lies behind the pools is not the program's. */
	if (f->port == NULL || offset != 0 || len > f->port->ring.info.memsize) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, at, len, protection, flags, f->port->ring.memory->file, 0);
}

void *
mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset)
{
	struct nm_file *f = flags & MAP_ANONYMOUS ? NULL : nm_file(fd);

	if (f != NULL)
		return map_file(f, at, len, protection, flags, offset);
	return (void *)syscall(SYS_mmap, at, len, protection, flags, fd, offset);
}

void *
mmap64(void *at, size_t len, int protection, int flags, int fd, off64_t offset)
{
	return mmap(at, len, protection, flags, fd, offset);
}

int
ioctl(int fd, unsigned long request, ...)
{
	struct nm_file *f = nm_file(fd);
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (f != NULL)
		return nm_ioctl(f, fd, request, arg);
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

int
close(int fd)
{
	if (nm_file(fd) != NULL)
		nm_forget(fd);
	else
		nm_epoll_forget(fd);
	return (int)syscall(SYS_close, fd);
}

int
dup(int fd)
{
	return share(fd, (int)syscall(SYS_dup, fd));
}

int
dup3(int fd, int to, int flags)
{
	int result;

	if (nm_file(to) != NULL && fd != to)
		nm_forget(to);
	result = (int)syscall(SYS_dup3, fd, to, flags);
	return nm_file(fd) != NULL ? share(fd, result) : result;
}

int
dup2(int fd, int to)
{
	/* The kernel's dup3 refuses what dup2 allows. */
	return fd == to ? (syscall(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : to) : dup3(fd, to, 0);
}
