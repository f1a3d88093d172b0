/*
 * Ports and switches controlled by a program's own NIOCCTRL and NIOCREGIF: made, attached, listed, polled, parted, removed.
 * argv: a processor that is an I/O core. The daemon has no ports of its own.
 */
#include "check.h"

#include <libnetmap.h>
#include <stdlib.h>

static int device;

static int
request(uint16_t type, const char *name, void *body)
{
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_reqtype = type, .nr_body = (uintptr_t)body };

	strncpy(h.nr_name, name, sizeof(h.nr_name) - 1);
	return ioctl(device, NIOCCTRL, &h);
}

static int
legacy(uint16_t cmd, const char *name, struct nmreq *r)
{
	r->nr_version = NETMAP_API;
	r->nr_cmd = cmd;
	strncpy(r->nr_name, name, sizeof(r->nr_name) - 1);
	return ioctl(device, NIOCREGIF, r);
}

/* Opens a port when its last client has gone: the daemon sees that a moment later. */
static struct nmport_d *
soon(const char *name)
{
	struct nmport_d *d;

	while ((d = nmport_open(name)) == NULL && errno == EBUSY)
		;
	return d;
}

/* Two ports of one switch pass a frame: it is the port that the switch has. */
static void
pass(const char *from, const char *to)
{
	struct nmport_d *a = soon(from), *b = soon(to);
	struct netmap_ring *ring;

	CHECK(a != NULL && b != NULL);
	if (failures > 0)
		exit(1);
	send_one(a->fd, NETMAP_TXRING(a->nifp, 0), 9, 1);
	INDICES(NETMAP_TXRING(a->nifp, 0), 1, 1, 0);
	CHECK(ask(b->fd, POLLIN, SOON) == POLLIN);
	ring = NETMAP_RXRING(b->nifp, nm_ring_empty(NETMAP_RXRING(b->nifp, 0)) ? b->last_rx_ring : 0);
	INDICES(ring, 0, 0, 1);
	nmport_close(a);
	nmport_close(b);
}

/* Waits until no client has the port any more: the daemon sees that a moment after the close. */
static void
free_again(uint16_t type, const char *name)
{
	while (request(type, name, NULL) < 0) {
		if (errno != EBUSY) {
			CHECK(errno == 0);
			return;
		}
	}
}

/* A frame of `len` bytes from one port that a program has made to another, in as many slots as it takes. */
static void
pass_long(unsigned len)
{
	static char bytes[65536];
	struct nmport_d *a = nmport_open("vale4:a"), *b = nmport_open("vale4:b");
	struct netmap_ring *r;
	unsigned got = 0, last = 0;

	CHECK(a != NULL && b != NULL);
	if (failures > 0)
		exit(1);
	memset(bytes, 7, sizeof(bytes));
	CHECK(nmport_inject(a, bytes, len) == (int)len);
	CHECK(ioctl(a->fd, NIOCTXSYNC) == 0);
	drain(a->fd, NETMAP_TXRING(a->nifp, 0));
	r = NETMAP_RXRING(b->nifp, 0);
	await(b->fd, r, (len + r->nr_buf_size - 1) / r->nr_buf_size);
	for (; r->head != r->tail; r->head = r->cur = nm_ring_next(r, r->head)) {
		struct netmap_slot *slot = &r->slot[r->head];

		CHECK(memcmp(NETMAP_BUF(r, slot->buf_idx), bytes, slot->len) == 0);
		got += slot->len;
		last = slot->flags & NS_MOREFRAG;
	}
	CHECK(got == len && last == 0);
	nmport_close(a);
	nmport_close(b);
}

/* Pipes of a port that is not there, in the memory of one that is: as load balancers have them. */
static void
pipes_inside(void)
{
	struct nmport_d *in = nmport_open("vale4:in}9"), *p, *s;
	struct netmap_ring *r;
	char name[64];

	CHECK(in != NULL);
	if (failures > 0)
		exit(1);
	snprintf(name, sizeof(name), "netmap:out{0/xT@%u", in->reg.nr_mem_id);
	CHECK((p = nmport_open(name)) != NULL && p->mem == in->mem && p->reg.nr_mem_id == in->reg.nr_mem_id);
	CHECK((s = nmport_open("netmap:out}0")) != NULL && s->mem == in->mem);
	if (failures > 0)
		exit(1);
	put(NETMAP_TXRING(p->nifp, 0), 0, 2, 3, 0);
	NETMAP_TXRING(p->nifp, 0)->head = NETMAP_TXRING(p->nifp, 0)->cur = 1;
	CHECK(ioctl(p->fd, NIOCTXSYNC) == 0);
	r = NETMAP_RXRING(s->nifp, 0);
	CHECK(ask(s->fd, POLLIN, SOON) == POLLIN && NETMAP_BUF(r, r->slot[0].buf_idx)[5] == 2);
	nmport_close(in);
	nmport_close(p);
	nmport_close(s);
	/* With the last of them the name is free again. */
	CHECK((s = nmport_open("netmap:out}0")) != NULL);
	nmport_close(s);
}

int
main(int argc, char **argv)
{
	struct nmreq_vale_newif newif = { .nr_tx_slots = 64, .nr_rx_slots = 64, .nr_tx_rings = 2, .nr_rx_rings = 2 };
	struct nmreq_vale_attach attach = { .reg = { .nr_mode = NR_REG_ALL_NIC } };
	struct nmreq_vale_detach detach;
	struct nmreq_vale_list list = { 0 };
	struct nmreq_vale_polling polling = { .nr_mode = NETMAP_POLLING_MODE_SINGLE_CPU, .nr_num_polling_cpus = 1 };
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_reqtype = NETMAP_REQ_VALE_LIST };
	struct nmreq_port_info_get info = { 0 };
	struct nmreq old;
	uint32_t index;

	if (argc != 2 || (device = open("/dev/netmap", O_RDWR)) < 0)
		return 2;
	polling.nr_first_cpu_id = (uint32_t)atoi(argv[1]);

	pass_long(10049);
	pass_long(65000);
	pipes_inside();

	/* VALE_NEWIF: a port that stays, with the rings that were asked for. */
	CHECK(request(NETMAP_REQ_VALE_NEWIF, "p1", &newif) == 0 && newif.nr_tx_slots == 64 && newif.nr_rx_rings == 2);
	CHECK(newif.nr_mem_id != 0);
	CHECK(request(NETMAP_REQ_VALE_NEWIF, "p1", &newif) < 0 && errno == EEXIST);
	CHECK(request(NETMAP_REQ_PORT_INFO_GET, "p1", &info) == 0 && info.nr_tx_slots == 64 && info.nr_tx_rings == 2);
	CHECK(info.nr_mem_id == newif.nr_mem_id);

	/* VALE_ATTACH: to a switch that was not there. */
	CHECK(request(NETMAP_REQ_VALE_ATTACH, "p1", &attach) < 0 && errno == EINVAL);
	CHECK(request(NETMAP_REQ_VALE_ATTACH, "vale7:nobody", &attach) < 0 && errno == ENXIO);
	CHECK(request(NETMAP_REQ_VALE_ATTACH, "vale7:p1", &attach) == 0);
	index = attach.port_index;
	CHECK(request(NETMAP_REQ_VALE_ATTACH, "vale7:p1", &attach) < 0 && errno == EBUSY);
	/* To a second one, too: it is there for programs that open it by that name. */
	CHECK(request(NETMAP_REQ_VALE_ATTACH, "vale8:p1", &attach) == 0);
	CHECK(request(NETMAP_REQ_VALE_ATTACH, "vale8:p1", &attach) < 0 && errno == EBUSY);
	CHECK(request(NETMAP_REQ_VALE_LIST, "vale8:p1", &list) == 0 && list.nr_port_idx != 255);
	pass("vale8:p1", "vale8:x");
	CHECK(request(NETMAP_REQ_VALE_LIST, "vale7:p1", &list) == 0 && list.nr_port_idx != 255);
	pass("vale7:y", "vale7:p1");
	CHECK(request(NETMAP_REQ_VALE_DETACH, "vale8:p1", &detach) == 0);
	CHECK(request(NETMAP_REQ_VALE_DETACH, "vale8:p1", &detach) < 0 && errno == ENXIO);
	attach.reg.nr_mode = NR_REG_ONE_NIC;
	CHECK(request(NETMAP_REQ_VALE_ATTACH, "vale7:p1", &attach) < 0 && errno == EINVAL);
	pass("netmap:p1", "vale7:x");
	pass("vale7:y", "vale7:p1");

	/* VALE_LIST: by name, and one after another. */
	CHECK(request(NETMAP_REQ_VALE_LIST, "vale7:p1", &list) == 0 && list.nr_port_idx == index);
	CHECK(request(NETMAP_REQ_VALE_LIST, "vale7:nobody", &list) == 0 && list.nr_port_idx == 255);
	memset(&list, 0, sizeof(list));
	h.nr_body = (uintptr_t)&list;
	CHECK(ioctl(device, NIOCCTRL, &h) == 0 && strcmp(h.nr_name, "vale7:p1") == 0);
	list.nr_bridge_idx = 99;
	memset(h.nr_name, 0, sizeof(h.nr_name));
	CHECK(ioctl(device, NIOCCTRL, &h) < 0 && errno == ENOENT);

	/* VALE_POLLING: what I/O cores do anyway. */
	CHECK(request(NETMAP_REQ_VALE_POLLING_DISABLE, "vale7:p1", &polling) < 0 && errno == EINVAL);
	CHECK(request(NETMAP_REQ_VALE_POLLING_ENABLE, "vale7:p1", &polling) == 0);
	CHECK(request(NETMAP_REQ_VALE_POLLING_ENABLE, "vale7:p1", &polling) < 0 && errno == EBUSY);
	CHECK(request(NETMAP_REQ_VALE_POLLING_DISABLE, "vale7:p1", &polling) == 0);

	/* VALE_DETACH and VALE_DELIF. */
	CHECK(request(NETMAP_REQ_VALE_DELIF, "p1", NULL) < 0 && errno == EBUSY);
	CHECK(request(NETMAP_REQ_VALE_DETACH, "vale7:p1", &detach) == 0 && detach.port_index == index);
	CHECK(request(NETMAP_REQ_VALE_DETACH, "vale7:p1", &detach) < 0 && errno == ENXIO);
	free_again(NETMAP_REQ_VALE_DELIF, "p1");
	CHECK(request(NETMAP_REQ_VALE_DELIF, "p1", NULL) < 0 && errno == ENXIO);
	/* A body where none belongs, and none where one does. */
	CHECK(request(NETMAP_REQ_VALE_DELIF, "p1", &detach) < 0 && errno == EINVAL);
	CHECK(request(NETMAP_REQ_VALE_DETACH, "vale7:p1", NULL) < 0 && errno == EINVAL);

	/* The same in the words of older programs. */
	memset(&old, 0, sizeof(old));
	old.nr_tx_slots = old.nr_rx_slots = 32;
	CHECK(legacy(NETMAP_BDG_NEWIF, "p2", &old) == 0);
	memset(&old, 0, sizeof(old));
	CHECK(legacy(NETMAP_BDG_ATTACH, "vale6:p2", &old) == 0);
	memset(&old, 0, sizeof(old));
	CHECK(legacy(NETMAP_BDG_VNET_HDR, "p2", (old.nr_arg1 = 12, &old)) == 0);
	memset(&old, 0, sizeof(old));
	CHECK(legacy(NETMAP_VNET_HDR_GET, "p2", &old) == 0 && old.nr_arg1 == 12);
	CHECK(legacy(NETMAP_BDG_VNET_HDR, "p2", (old.nr_arg1 = 0, &old)) == 0);
	memset(&old, 0, sizeof(old));
	CHECK(legacy(NETMAP_BDG_LIST, "", &old) == 0 && strcmp(old.nr_name, "vale6:p2") == 0);
	memset(&old, 0, sizeof(old));
	CHECK(legacy(NETMAP_BDG_DETACH, "vale6:p2", &old) == 0);
	CHECK(legacy(NETMAP_BDG_DELIF, "p2", (memset(old.nr_name, 0, sizeof(old.nr_name)), &old)) == 0);
	CHECK(legacy(99, "p2", &old) < 0 && errno == EOPNOTSUPP);
	close(device);
	return failures != 0;
}
