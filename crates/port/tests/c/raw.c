/*
 * The calls that a program built against netmap's headers alone makes: open, ioctl, mmap, poll, ppoll, select, epoll, dup
 * and close on /dev/netmap, step by step. argv: the two ports' names. It is linked without our library, which is loaded
 * before it.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/select.h>

struct port {
	int fd;
	char *mem;
	struct netmap_if *nifp;
	struct nmreq_register reg;
};

static int
request(int fd, uint16_t type, const char *name, void *body)
{
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_reqtype = type, .nr_body = (uintptr_t)body };

	strncpy(h.nr_name, name, sizeof(h.nr_name) - 1);
	return ioctl(fd, NIOCCTRL, &h);
}

static int
open_port(struct port *p, const char *name, uint32_t mode, uint16_t ring, uint64_t flags)
{
	memset(p, 0, sizeof(*p));
	p->fd = open("/dev/netmap", O_RDWR);
	if (p->fd < 0)
		return -1;
	p->reg.nr_mode = mode;
	p->reg.nr_ringid = ring;
	p->reg.nr_flags = flags;
	if (request(p->fd, NETMAP_REQ_REGISTER, name, &p->reg) < 0) {
		int saved = errno;

		close(p->fd);
		errno = saved;
		return -1;
	}
	p->mem = mmap(NULL, p->reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	if (p->mem == MAP_FAILED)
		return -1;
	p->nifp = NETMAP_IF(p->mem, p->reg.nr_offset);
	return 0;
}

static void
send_to(struct port *p, unsigned char to, unsigned char from)
{
	send_one(p->fd, NETMAP_TXRING(p->nifp, 0), to, from);
}

static unsigned
take_all(struct port *p)
{
	struct netmap_ring *ring = NETMAP_RXRING(p->nifp, 0);
	unsigned n = nm_ring_space(ring);

	ring->head = ring->cur = ring->tail;
	CHECK(ioctl(p->fd, NIOCRXSYNC) == 0);
	return n;
}

static void
waiting(struct port *a, struct port *b)
{
	struct timespec second = { 20, 0 }, now = { 0, 0 };
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 77 }, got[4];
	struct timeval long_time = { 20, 0 }, no_time = { 0, 0 };
	struct pollfd p = { .fd = b->fd, .events = POLLIN };
	int set = epoll_create1(0), pair[2];
	fd_set in;

	/* ppoll */
	CHECK(ppoll(&p, 1, &now, NULL) == 0);
	send_to(a, 2, 1);
	CHECK(ppoll(&p, 1, &second, NULL) == 1 && p.revents == POLLIN);
	CHECK(take_all(b) == 1);

	/* select, with another descriptor in the set */
	CHECK(pipe(pair) == 0);
	FD_ZERO(&in);
	FD_SET(b->fd, &in);
	FD_SET(pair[0], &in);
	CHECK(select(FD_SETSIZE, &in, NULL, NULL, &no_time) == 0 && !FD_ISSET(b->fd, &in));
	send_to(a, 2, 1);
	FD_SET(b->fd, &in);
	FD_SET(pair[0], &in);
	CHECK(select(FD_SETSIZE, &in, NULL, NULL, &long_time) == 1 && FD_ISSET(b->fd, &in) && !FD_ISSET(pair[0], &in));
	CHECK(take_all(b) == 1);
	FD_SET(b->fd, &in);
	FD_SET(pair[0], &in);
	CHECK(write(pair[1], "x", 1) == 1);
	CHECK(pselect(FD_SETSIZE, &in, NULL, NULL, &second, NULL) == 1 && FD_ISSET(pair[0], &in));
	FD_ZERO(&in);
	FD_SET(a->fd, &in);
	CHECK(select(FD_SETSIZE, NULL, &in, NULL, NULL) == 1 && FD_ISSET(a->fd, &in));

	/* epoll: level-triggered, beside others; what waits to be sent goes, too */
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b->fd, &event) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b->fd, &event) < 0 && errno == EEXIST);
	CHECK(epoll_wait(set, got, 4, 0) == 0);
	send_to(a, 2, 1);
	CHECK(epoll_wait(set, got, 4, 20000) == 1 && got[0].events == EPOLLIN && got[0].data.u64 == 77);
	CHECK(epoll_wait(set, got, 4, -1) == 1);
	CHECK(take_all(b) == 1);
	CHECK(epoll_wait(set, got, 4, 0) == 0);
	event.data.u64 = 78;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1 && got[0].data.u64 == 78);
	send_to(a, 2, 1);
	CHECK(read(pair[0], got, 1) == 1);
	CHECK(epoll_pwait(set, got, 4, 20000, NULL) == 1 && got[0].data.u64 == 77);
	event.events = EPOLLIN | EPOLLOUT;
	event.data.u64 = 79;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, b->fd, &event) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1 && got[0].events == (EPOLLIN | EPOLLOUT) && got[0].data.u64 == 79);
	CHECK(take_all(b) == 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, b->fd, NULL) == 0);
	CHECK(epoll_wait(set, got, 4, 0) == 0);
	close(set);
	close(pair[0]);
	close(pair[1]);
}

int
main(int argc, char **argv)
{
	struct nmreq_option option = { .nro_reqtype = NETMAP_REQ_OPT_OFFSETS };
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_reqtype = NETMAP_REQ_REGISTER };
	struct nmreq old = { .nr_version = 11 };
	struct nmreq_pools_info pools;
	struct nmreq_register reg = { .nr_mode = NR_REG_ALL_NIC };
	struct port a, b, c, d;
	struct pollfd p = { .events = POLLIN };
	int other;

	if (argc != 3)
		return 2;
	/* Not bound: nothing is possible but requests. */
	p.fd = open("/dev/netmap", O_RDWR | O_CLOEXEC);
	CHECK(p.fd >= 0);
	CHECK(ioctl(p.fd, NIOCTXSYNC) < 0 && errno == ENXIO);
	CHECK(poll(&p, 1, 0) == 1 && p.revents == POLLERR);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, p.fd, 0) == MAP_FAILED);
	CHECK(ioctl(p.fd, 12345, NULL) < 0 && errno == ENOTTY);
	/* Requests that make no sense. */
	CHECK(ioctl(p.fd, NIOCCTRL, &h) < 0 && errno == EINVAL);
	h.nr_body = (uintptr_t)&reg;
	h.nr_reserved = 1;
	CHECK(ioctl(p.fd, NIOCCTRL, &h) < 0 && errno == EINVAL);
	h.nr_reserved = 0;
	h.nr_reqtype = 99;
	CHECK(ioctl(p.fd, NIOCCTRL, &h) < 0 && errno == EINVAL);
	h.nr_reqtype = NETMAP_REQ_REGISTER;
	strncpy(h.nr_name, argv[1], sizeof(h.nr_name) - 1);
	h.nr_options = (uintptr_t)&option;
	CHECK(ioctl(p.fd, NIOCCTRL, &h) < 0 && errno == EOPNOTSUPP && option.nro_status == EOPNOTSUPP);
	h.nr_options = 0;
	reg.nr_mode = 99;
	CHECK(ioctl(p.fd, NIOCCTRL, &h) < 0 && errno == EINVAL);
	reg.nr_mode = NR_REG_SW;
	CHECK(ioctl(p.fd, NIOCCTRL, &h) < 0 && errno == EOPNOTSUPP);
	CHECK(request(p.fd, NETMAP_REQ_POOLS_INFO_GET, argv[1], &pools) == 0);
	CHECK(request(p.fd, NETMAP_REQ_REGISTER, "/nowhere/at/all", &reg) < 0);
	close(p.fd);

	CHECK(open_port(&a, argv[1], NR_REG_ALL_NIC, 0, 0) == 0);
	CHECK(open_port(&b, argv[2], NR_REG_ALL_NIC, 0, 0) == 0);
	if (failures > 0)
		return 1;
	CHECK(pools.nr_memsize == a.reg.nr_memsize && pools.nr_mem_id == a.reg.nr_mem_id);
	CHECK(pools.nr_buf_pool_objsize == NETMAP_TXRING(a.nifp, 0)->nr_buf_size);
	CHECK(a.reg.nr_mem_id != b.reg.nr_mem_id);
	CHECK(request(a.fd, NETMAP_REQ_REGISTER, argv[2], &reg) < 0 && errno == EBUSY);
	CHECK(mmap(NULL, a.reg.nr_memsize + 4096, PROT_READ, MAP_SHARED, a.fd, 0) == MAP_FAILED);

	/* Both known to the switch. */
	send_to(&a, 2, 1);
	p.fd = b.fd;
	CHECK(poll(&p, 1, 20000) == 1 && take_all(&b) == 1);
	send_to(&b, 1, 2);
	p.fd = a.fd;
	CHECK(poll(&p, 1, 20000) == 1 && take_all(&a) == 1);
	waiting(&a, &b);

	/* One ring pair: the others are not there. No other client may have one that is exclusive. */
	CHECK(open_port(&c, argv[1], NR_REG_ONE_NIC, 1, NR_EXCLUSIVE) < 0 && errno == EBUSY);
	CHECK(open_port(&c, argv[1], NR_REG_ONE_NIC, 1, 0) == 0);
	CHECK(c.nifp != a.nifp && c.nifp->ring_ofs[0] == 0 && c.nifp->ring_ofs[1] != 0);
	CHECK(NETMAP_TXRING(c.nifp, 1)->ringid == 1 && NETMAP_RXRING(c.nifp, 1)->ringid == 1);
	CHECK(open_port(&d, argv[1], NR_REG_ALL_NIC, 0, NR_RX_RINGS_ONLY) == 0);
	CHECK(d.nifp->ring_ofs[0] == 0 && d.nifp->ring_ofs[d.nifp->ni_tx_rings + 1] != 0);
	close(c.fd);
	close(d.fd);
	CHECK(open_port(&c, argv[1], NR_REG_ONE_NIC, 9, 0) < 0 && errno == EINVAL);

	/* A second descriptor of a file keeps it. */
	other = dup(b.fd);
	CHECK(other >= 0 && close(b.fd) == 0);
	b.fd = other;
	other = fcntl(b.fd, F_GETFD) >= 0 ? dup2(b.fd, 200) : -1;
	CHECK(other == 200);
	close(b.fd);
	b.fd = other;
	other = dup3(b.fd, 201, O_CLOEXEC);
	CHECK(other == 201 && dup3(b.fd, b.fd, 0) < 0 && errno == EINVAL);
	close(b.fd);
	b.fd = other;
	other = openat(AT_FDCWD, "/dev/netmap", O_RDWR);
	CHECK(other >= 0 && ioctl(other, NIOCRXSYNC) < 0 && errno == ENXIO);
	CHECK(ioctl(other, NIOCCONFIG, &option) < 0 && errno == ENOTTY);
	close(other);
	a.mem = mmap64(NULL, a.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
	CHECK(a.mem != MAP_FAILED && memcmp(a.mem, a.nifp, sizeof(*a.nifp)) == 0);
	send_to(&a, 2, 1);
	p.fd = b.fd;
	CHECK(poll(&p, 1, 20000) == 1 && take_all(&b) == 1);

	/* The requests of older programs. */
	if (strlen(argv[1]) < sizeof(old.nr_name)) {
		strncpy(old.nr_name, argv[1], sizeof(old.nr_name) - 1);
		CHECK(ioctl(a.fd, NIOCGINFO, &old) == 0 && old.nr_tx_slots == a.reg.nr_tx_slots);
		other = open("/dev/netmap", O_RDWR);
		CHECK(ioctl(other, NIOCREGIF, &old) == 0 && old.nr_memsize == a.reg.nr_memsize);
		close(other);
		old.nr_version = 10;
		CHECK(ioctl(a.fd, NIOCGINFO, &old) < 0 && errno == EINVAL);
	}
	munmap(b.mem, b.reg.nr_memsize);
	close(b.fd);
	close(a.fd);
	return failures != 0;
}
