/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The ioctls of /dev/netmap: syncs, NIOCCTRL's requests, and those of older programs. */
#define _GNU_SOURCE
#include "nm.h"
#include "vale.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static __thread char why[sizeof(((struct vale_reply *)NULL)->text)];

void
nm_set_why(const char *text)
{
	snprintf(why, sizeof(why), "%s", text);
}

int
nm_has_why(void)
{
	return why[0] != '\0';
}

const char *
nm_why(int error)
{
	return nm_has_why() ? why : strerror(error);
}

/* Asks the daemon; 0 or an errno. */
static int
ask(const char *name, struct vale_ask *a, struct vale_reply *reply)
{
	memset(reply, 0, sizeof(*reply));
	if (vale_ask(name, a, reply, NULL) == 0)
		return 0;
	if (reply->error != 0)
		nm_set_why(reply->text);
	return errno;
}

/* Options that a request has brought. */
struct options {
	struct nmreq_opt_csb *csb;
	struct nmreq_opt_sync_kloop_eventfds *events;
};

#define BIT(type) (1u << (type))

/* The options that a request knows. */
static uint32_t
known_options(uint16_t request)
{
	switch (request) {
	case NETMAP_REQ_REGISTER:
	case NETMAP_REQ_CSB_ENABLE:
		return BIT(NETMAP_REQ_OPT_CSB);
	case NETMAP_REQ_SYNC_KLOOP_START:
		/* Whether a kick or the loop serves a ring makes no difference here: mode is what the loop does anyway. */
		return BIT(NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS) | BIT(NETMAP_REQ_OPT_SYNC_KLOOP_MODE);
	default:
		return 0;
	}
}

/* The options of a request: an unknown one is reported as such. 0 or an errno: first of what no kernel would read, an
 * option of a kind that is there already, or a list that does not end. */
static int
options(struct nmreq_header *h, struct options *found)
{
	struct nmreq_option *o;
	uint64_t size = sizeof(*h) + sizeof(struct nmreq_register);
	uint32_t seen = 0, known = known_options(h->nr_reqtype);
	int result = 0;

	memset(found, 0, sizeof(*found));
	for (o = (void *)(uintptr_t)h->nr_options; o != NULL; o = (void *)(uintptr_t)o->nro_next) {
		uint32_t bit = o->nro_reqtype < NETMAP_REQ_OPT_MAX ? BIT(o->nro_reqtype) : 0;

		/* Each takes its place, and that of two pointers. */
		size += sizeof(*o) + 16 + (o->nro_reqtype == NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS ? o->nro_size : 0);
		if (size > NETMAP_REQ_MAXSIZE || o->nro_size > NETMAP_REQ_MAXSIZE)
			return EMSGSIZE;
		if (o->nro_reqtype < 1 || (seen & bit) != 0)
			return (int)(o->nro_status = EINVAL);
		seen |= bit;
		o->nro_status = (known & bit) != 0 ? 0 : EOPNOTSUPP;
		if (o->nro_status != 0)
			result = EOPNOTSUPP;
		if (o->nro_reqtype == NETMAP_REQ_OPT_CSB)
			found->csb = (void *)o;
		if (o->nro_reqtype == NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS)
			found->events = (void *)o;
	}
	if (result != 0)
		nm_set_why("this request does not have that option here");
	return result;
}

/* Binds a descriptor, with a CSB if one is wanted. */
static int
register_port(struct nm_file *f, int fd, struct nmreq_header *h, struct nmreq_register *body, const struct options *o)
{
	int error = nm_bind(f, h->nr_name, body);

	if (error != 0 || o->csb == NULL)
		return error;
	error = nm_csb_enable(f, fd, o->csb);
	if (error != 0) {
		o->csb->nro_opt.nro_status = (uint32_t)error;
		nm_unbind(f, fd);
	}
	return error;
}

/* Serves the descriptor's CSB until another thread stops that. */
static int
serve_csb(struct nm_file *f, const struct nmreq_sync_kloop_start *body, const struct options *o)
{
	int error;

	nm_hold(f);
	error = nm_kloop_start(f, body, o->events);
	if (error != 0 && o->events != NULL)
		o->events->nro_opt.nro_status = (uint32_t)error;
	nm_release(f);
	return error;
}

static int
port_info(const char *name, struct nmreq_port_info_get *body)
{
	struct ring_answer info;

	if (ring_ask(name, RING_INFO, 0, &info) < 0)
		return errno;
	memset(body, 0, sizeof(*body));
	body->nr_memsize = info.memsize;
	body->nr_tx_slots = info.tx_slots;
	body->nr_rx_slots = info.rx_slots;
	body->nr_tx_rings = (uint16_t)info.tx_rings;
	body->nr_rx_rings = (uint16_t)info.rx_rings;
	body->nr_host_tx_rings = body->nr_host_rx_rings = (uint16_t)(info.host_rings > 0 ? info.host_rings : 1);
	body->nr_mem_id = (uint16_t)info.mem_id;
	return 0;
}

static int
pools_info(const char *name, struct nmreq_pools_info *body)
{
	struct ring_answer info;

	if (ring_ask(name, RING_INFO, 0, &info) < 0)
		return errno;
	memset(body, 0, sizeof(*body));
	body->nr_memsize = info.memsize;
	body->nr_mem_id = (uint16_t)info.mem_id;
	body->nr_if_pool_objsize = (uint32_t)info.ring_pool;
	body->nr_if_pool_objtotal = 1;
	body->nr_ring_pool_offset = info.ring_pool;
	body->nr_ring_pool_objsize = info.ring_size;
	body->nr_ring_pool_objtotal = info.tx_rings + info.rx_rings + 2 * info.host_rings + 4 * info.pipes;
	body->nr_buf_pool_offset = info.buf_pool;
	body->nr_buf_pool_objsize = info.buf_size;
	body->nr_buf_pool_objtotal = info.bufs;
	return 0;
}

static int
header_length(const char *name, struct nmreq_port_hdr *body, int set)
{
	struct ring_answer info;

	if (ring_ask(name, set ? RING_SET_HEADER : RING_INFO, set ? body->nr_hdr_len : 0, &info) < 0)
		return errno;
	body->nr_hdr_len = info.header;
	return 0;
}

static int
vale_list(struct nmreq_header *h, struct nmreq_vale_list *body)
{
	struct vale_ask a = { .verb = VALE_LIST, .first = body->nr_bridge_idx, .second = body->nr_port_idx };
	struct vale_reply reply;
	int error = ask(h->nr_name, &a, &reply);

	if (error != 0)
		return error;
	body->nr_bridge_idx = (uint16_t)reply.sw;
	body->nr_port_idx = reply.port;
	if (h->nr_name[0] == '\0')
		memcpy(h->nr_name, reply.name, sizeof(h->nr_name));
	return 0;
}

static int
vale_join(struct nmreq_header *h, struct nmreq_vale_attach *body)
{
	struct vale_ask a = { .verb = VALE_ATTACH, .mode = body->reg.nr_mode };
	struct vale_reply reply;
	int error;

	if (body->reg.nr_mode != NR_REG_ALL_NIC && body->reg.nr_mode != NR_REG_NIC_SW)
		return EINVAL;
	error = ask(h->nr_name, &a, &reply);
	if (error == 0)
		body->port_index = reply.port;
	return error;
}

static int
vale_part(struct nmreq_header *h, struct nmreq_vale_detach *body)
{
	struct vale_ask a = { .verb = VALE_DETACH };
	struct vale_reply reply;
	int error = ask(h->nr_name, &a, &reply);

	if (error == 0)
		body->port_index = reply.port;
	return error;
}

static int
vale_newif(struct nmreq_header *h, struct nmreq_vale_newif *body)
{
	struct vale_ask a = { .verb = VALE_NEWIF, .tx_slots = body->nr_tx_slots, .rx_slots = body->nr_rx_slots,
		.tx_rings = body->nr_tx_rings, .rx_rings = body->nr_rx_rings };
	struct nmreq_port_info_get info;
	struct vale_reply reply;
	int error = ask(h->nr_name, &a, &reply);

	if (error == 0)
		error = port_info(h->nr_name, &info);
	if (error != 0)
		return error;
	body->nr_tx_slots = info.nr_tx_slots;
	body->nr_rx_slots = info.nr_rx_slots;
	body->nr_tx_rings = info.nr_tx_rings;
	body->nr_rx_rings = info.nr_rx_rings;
	body->nr_mem_id = info.nr_mem_id;
	return 0;
}

static int
vale_polling(struct nmreq_header *h, struct nmreq_vale_polling *body, uint32_t verb)
{
	struct vale_ask a = { .verb = verb, .mode = body->nr_mode, .first = body->nr_first_cpu_id,
		.second = body->nr_num_polling_cpus };
	struct vale_reply reply;

	return ask(h->nr_name, &a, &reply);
}

/* One request; 0 or an errno. */
static int
request(struct nm_file *f, int fd, struct nmreq_header *h)
{
	void *body = (void *)(uintptr_t)h->nr_body;
	int bodyless = h->nr_reqtype == NETMAP_REQ_VALE_DELIF || h->nr_reqtype == NETMAP_REQ_SYNC_KLOOP_STOP ||
	    h->nr_reqtype == NETMAP_REQ_CSB_ENABLE;
	struct vale_ask a = { .verb = VALE_DELIF };
	struct vale_reply reply;
	struct options o;
	int error;

	if (h->nr_version < NETMAP_MIN_API || h->nr_version > NETMAP_MAX_API || h->nr_reserved != 0 ||
	    (body == NULL) != bodyless || memchr(h->nr_name, '\0', sizeof(h->nr_name)) == NULL)
		return EINVAL;
	error = options(h, &o);
	if (error != 0)
		return error;
	switch (h->nr_reqtype) {
	case NETMAP_REQ_REGISTER:
		return register_port(f, fd, h, body, &o);
	case NETMAP_REQ_PORT_INFO_GET:
		return port_info(h->nr_name, body);
	case NETMAP_REQ_PORT_HDR_SET:
		return header_length(h->nr_name, body, 1);
	case NETMAP_REQ_PORT_HDR_GET:
		return header_length(h->nr_name, body, 0);
	case NETMAP_REQ_POOLS_INFO_GET:
		return pools_info(h->nr_name, body);
	case NETMAP_REQ_VALE_LIST:
		return vale_list(h, body);
	case NETMAP_REQ_VALE_ATTACH:
		return vale_join(h, body);
	case NETMAP_REQ_VALE_DETACH:
		return vale_part(h, body);
	case NETMAP_REQ_VALE_NEWIF:
		return vale_newif(h, body);
	case NETMAP_REQ_VALE_DELIF:
		return ask(h->nr_name, &a, &reply);
	case NETMAP_REQ_VALE_POLLING_ENABLE:
		return vale_polling(h, body, VALE_POLLING_ON);
	case NETMAP_REQ_VALE_POLLING_DISABLE:
		return vale_polling(h, body, VALE_POLLING_OFF);
	case NETMAP_REQ_CSB_ENABLE:
		if (o.csb == NULL)
			return EINVAL;
		error = nm_csb_enable(f, fd, o.csb);
		o.csb->nro_opt.nro_status = (uint32_t)error;
		return error;
	case NETMAP_REQ_SYNC_KLOOP_START:
		return serve_csb(f, body, &o);
	case NETMAP_REQ_SYNC_KLOOP_STOP:
		return nm_kloop_stop(f);
	default:
		return EINVAL;
	}
}

void
nm_modern(const struct nmreq *old, char name[NETMAP_REQ_IFNAMSIZ], struct nmreq_register *reg)
{
	uint32_t mode = old->nr_flags & NR_REG_MASK;
	unsigned ring = old->nr_ringid & NETMAP_RING_MASK;

	memset(reg, 0, sizeof(*reg));
	snprintf(name, NETMAP_REQ_IFNAMSIZ, "%.*s", IFNAMSIZ - 1, old->nr_name);
	if (mode == NR_REG_DEFAULT)
		mode = old->nr_ringid & NETMAP_SW_RING ? NR_REG_SW :
		    old->nr_ringid & NETMAP_HW_RING ? NR_REG_ONE_NIC : NR_REG_ALL_NIC;
	if (mode == NR_REG_PIPE_MASTER || mode == NR_REG_PIPE_SLAVE) {
		size_t len = strlen(name);

		snprintf(name + len, NETMAP_REQ_IFNAMSIZ - len, "%c%u", mode == NR_REG_PIPE_MASTER ? '{' : '}', ring);
		mode = NR_REG_ALL_NIC;
		ring = 0;
	}
	reg->nr_mode = mode;
	reg->nr_ringid = (uint16_t)ring;
	reg->nr_tx_slots = old->nr_tx_slots;
	reg->nr_rx_slots = old->nr_rx_slots;
	reg->nr_tx_rings = old->nr_tx_rings;
	reg->nr_rx_rings = old->nr_rx_rings;
	reg->nr_mem_id = old->nr_arg2;
	reg->nr_extra_bufs = old->nr_arg3;
	reg->nr_flags = old->nr_flags & ~(uint32_t)NR_REG_MASK;
	if (old->nr_ringid & NETMAP_NO_TX_POLL)
		reg->nr_flags |= NR_NO_TX_POLL;
	if (old->nr_ringid & NETMAP_DO_RX_POLL)
		reg->nr_flags |= NR_DO_RX_POLL;
}

/* What older programs ask by NIOCREGIF and NIOCGINFO, in today's words; 0 or an errno. */
static int
legacy(struct nm_file *f, int fd, struct nmreq *old, int info_only)
{
	union {
		struct nmreq_register reg;
		struct nmreq_port_info_get info;
		struct nmreq_port_hdr hdr;
		struct nmreq_vale_attach attach;
		struct nmreq_vale_detach detach;
		struct nmreq_vale_list list;
		struct nmreq_vale_newif newif;
	} body;
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_body = (uintptr_t)&body };
	struct nmreq_register reg;
	int error;

	/* Programs that are newer than we are ask in the same words. */
	if (old->nr_version < 11)
		return EINVAL;
	memset(&body, 0, sizeof(body));
	nm_modern(old, h.nr_name, &reg);
	switch (info_only ? NETMAP_BDG_LIST + 100 : old->nr_cmd) {
	case NETMAP_BDG_LIST + 100:
		h.nr_reqtype = NETMAP_REQ_PORT_INFO_GET;
		break;
	case 0:
		h.nr_reqtype = NETMAP_REQ_REGISTER;
		body.reg = reg;
		break;
	case NETMAP_BDG_ATTACH:
		h.nr_reqtype = NETMAP_REQ_VALE_ATTACH;
		body.attach.reg = reg;
		body.attach.reg.nr_mode = old->nr_arg1 == NETMAP_BDG_HOST ? NR_REG_NIC_SW : NR_REG_ALL_NIC;
		break;
	case NETMAP_BDG_DETACH:
		h.nr_reqtype = NETMAP_REQ_VALE_DETACH;
		break;
	case NETMAP_BDG_LIST:
		h.nr_reqtype = NETMAP_REQ_VALE_LIST;
		body.list.nr_bridge_idx = old->nr_arg1;
		body.list.nr_port_idx = old->nr_arg2;
		break;
	case NETMAP_BDG_NEWIF:
		h.nr_reqtype = NETMAP_REQ_VALE_NEWIF;
		body.newif = (struct nmreq_vale_newif){ .nr_tx_slots = old->nr_tx_slots, .nr_rx_slots = old->nr_rx_slots,
			.nr_tx_rings = old->nr_tx_rings, .nr_rx_rings = old->nr_rx_rings };
		break;
	case NETMAP_BDG_DELIF:
		h.nr_reqtype = NETMAP_REQ_VALE_DELIF;
		h.nr_body = 0;
		break;
	case NETMAP_BDG_VNET_HDR:
		h.nr_reqtype = NETMAP_REQ_PORT_HDR_SET;
		body.hdr.nr_hdr_len = old->nr_arg1;
		break;
	case NETMAP_VNET_HDR_GET:
		h.nr_reqtype = NETMAP_REQ_PORT_HDR_GET;
		break;
	default:
		return EOPNOTSUPP;
	}
	error = request(f, fd, &h);
	if (error != 0)
		return error;
	switch (h.nr_reqtype) {
	case NETMAP_REQ_REGISTER:
		old->nr_offset = (uint32_t)body.reg.nr_offset;
		old->nr_memsize = (uint32_t)body.reg.nr_memsize;
		old->nr_tx_slots = body.reg.nr_tx_slots;
		old->nr_rx_slots = body.reg.nr_rx_slots;
		old->nr_tx_rings = body.reg.nr_tx_rings;
		old->nr_rx_rings = body.reg.nr_rx_rings;
		old->nr_arg2 = body.reg.nr_mem_id;
		old->nr_arg3 = body.reg.nr_extra_bufs;
		break;
	case NETMAP_REQ_PORT_INFO_GET:
		old->nr_memsize = (uint32_t)body.info.nr_memsize;
		old->nr_tx_slots = body.info.nr_tx_slots;
		old->nr_rx_slots = body.info.nr_rx_slots;
		old->nr_tx_rings = body.info.nr_tx_rings;
		old->nr_rx_rings = body.info.nr_rx_rings;
		old->nr_arg2 = body.info.nr_mem_id;
		break;
	case NETMAP_REQ_VALE_LIST:
		old->nr_arg1 = body.list.nr_bridge_idx;
		old->nr_arg2 = (uint16_t)body.list.nr_port_idx;
		snprintf(old->nr_name, sizeof(old->nr_name), "%.*s", IFNAMSIZ - 1, h.nr_name);
		break;
	case NETMAP_REQ_PORT_HDR_GET:
	case NETMAP_REQ_PORT_HDR_SET:
		old->nr_arg1 = (uint16_t)body.hdr.nr_hdr_len;
		break;
	default:
		break;
	}
	return 0;
}

int
nm_is_request(unsigned long request)
{
	return request == NIOCCTRL || request == NIOCTXSYNC || request == NIOCRXSYNC || request == NIOCREGIF ||
	    request == NIOCGINFO;
}

int
nm_ioctl(struct nm_file *f, int fd, unsigned long request_number, void *arg)
{
	int error = 0;
	uint16_t i;

	why[0] = '\0';
	switch (request_number) {
	case NIOCTXSYNC: /* a reset is not an error here, as in netmap */
		error = f->port == NULL ? ENXIO : f->atok != NULL ? EBUSY : 0;
		for (i = f->first_tx; error == 0 && i < f->last_tx; i++)
			nm_txsync(f->port, &f->port->tx[i]);
		break;
	case NIOCRXSYNC:
		error = f->port == NULL ? ENXIO : f->atok != NULL ? EBUSY : 0;
		for (i = f->first_rx; error == 0 && i < f->last_rx; i++)
			nm_rxsync(&f->port->rx[i]);
		break;
	case NIOCCTRL:
		error = request(f, fd, arg);
		break;
	case NIOCREGIF:
		error = legacy(f, fd, arg, 0);
		break;
	case NIOCGINFO:
		error = legacy(f, fd, arg, 1);
		break;
	default:
		error = ENOTTY;
		break;
	}
	if (error == 0)
		return 0;
	errno = error;
	return -1;
}
