/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libnetmap on sidecore's ring ports: ports, requests, and the context that errors and memory go through.
 * docs/netmap.md says what differs from the published library.
 */
#ifndef SIDECORE_LIBNETMAP_H
#define SIDECORE_LIBNETMAP_H

#include <net/netmap.h>
#ifndef NETMAP_WITH_LIBS
#define NETMAP_WITH_LIBS
#endif
#include <net/netmap_user.h>

#ifdef __cplusplus
extern "C" {
#endif

struct nmctx;
struct nmport_cleanup_d;

/* Memory that ports have in common: equal pointers mean that buffers can be exchanged. */
struct nmem_d {
	uint16_t mem_id;
	int refcount;
	void *mem;
	size_t size;
	int is_extmem;
	struct nmem_d *next;
	struct nmem_d *prev;
};

struct nmport_d {
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nmem_d *mem;
	struct nmctx *ctx;
	int register_done;
	int mmap_done;
	struct nmreq_opt_extmem *extmem;
	int fd;
	struct netmap_if *nifp;
	uint16_t first_tx_ring;
	uint16_t last_tx_ring;
	uint16_t first_rx_ring;
	uint16_t last_rx_ring;
	uint16_t cur_tx_ring;
	uint16_t cur_rx_ring;
	struct nmport_cleanup_d *clist;
};

/* A port, ready to use; NULL and errno if that cannot be, and the context's error call says why. */
struct nmport_d *nmport_open(const char *portspec);
void nmport_close(struct nmport_d *d);

/* The same in steps. */
struct nmport_d *nmport_prepare(const char *portspec);
int nmport_open_desc(struct nmport_d *d);
void nmport_undo_open_desc(struct nmport_d *d);
void nmport_undo_prepare(struct nmport_d *d);

/* And in smaller ones. */
struct nmport_d *nmport_new(void);
int nmport_parse(struct nmport_d *d, const char *portspec);
int nmport_register(struct nmport_d *d);
int nmport_mmap(struct nmport_d *d);
void nmport_delete(struct nmport_d *d);
void nmport_undo_parse(struct nmport_d *d);
void nmport_undo_register(struct nmport_d *d);
void nmport_undo_mmap(struct nmport_d *d);

/* Another descriptor of the same name, to be opened. */
struct nmport_d *nmport_clone(struct nmport_d *d);

/* Puts a packet into the first TX ring that has room, over several slots if need be; its size, or 0. */
int nmport_inject(struct nmport_d *d, const void *buf, size_t size);

/* Memory of the program's own, and offsets in buffers: not possible here, EOPNOTSUPP. */
int nmport_extmem(struct nmport_d *d, void *base, size_t size);
int nmport_extmem_from_file(struct nmport_d *d, const char *fname);
struct nmreq_pools_info *nmport_extmem_getinfo(struct nmport_d *d);
int nmport_offset(struct nmport_d *d, uint64_t initial, uint64_t maxoff, uint64_t bits, uint64_t mingap);

/* Options behind '@' in names: share, conf (on), offset, extmem (refused). */
void nmport_disable_option(const char *opt);
int nmport_enable_option(const char *opt);

void nmreq_header_init(struct nmreq_header *hdr, uint16_t reqtype, void *body);
/* Read a name, then the mode behind it; each moves its pointer on. 0, or -1 and errno. */
int nmreq_header_decode(const char **ppspec, struct nmreq_header *hdr, struct nmctx *ctx);
int nmreq_register_decode(const char **pmode, struct nmreq_register *reg, struct nmctx *ctx);

#define NMREQ_OPT_MAXKEYS 16

struct nmreq_parse_ctx {
	struct nmctx *ctx;
	void *token;
	const char *keys[NMREQ_OPT_MAXKEYS]; /* value of each key by its id, or NULL */
};

typedef int (*nmreq_opt_parser_cb)(struct nmreq_parse_ctx *);

struct nmreq_opt_key {
	const char *key;
	int id;
	unsigned int flags;
#define NMREQ_OPTK_ALLOWEMPTY (1U << 0)
#define NMREQ_OPTK_MUSTSET (1U << 1)
#define NMREQ_OPTK_DEFAULT (1U << 2)
};

struct nmreq_opt_parser {
	const char *prefix;
	nmreq_opt_parser_cb parse;
	int default_key;
	int nr_keys;
	unsigned int flags;
#define NMREQ_OPTF_DISABLED (1U << 0)
#define NMREQ_OPTF_ALLOWEMPTY (1U << 1)
	struct nmreq_opt_parser *next;
	struct nmreq_opt_key keys[NMREQ_OPT_MAXKEYS];
} __attribute__((aligned(16)));

/* Hands each option of "@prefix:key=value,…@…" to its parser. 0, or -1 and errno. */
int nmreq_options_decode(const char *opt, struct nmreq_opt_parser *parsers, void *token, struct nmctx *ctx);

/* The memory of the port that `*portname` names; the pointer moves behind the name. -1 and errno if there is none. */
int32_t nmreq_get_mem_id(const char **portname, struct nmctx *ctx);

void nmreq_push_option(struct nmreq_header *hdr, struct nmreq_option *opt);
void nmreq_remove_option(struct nmreq_header *hdr, struct nmreq_option *opt);
struct nmreq_option *nmreq_find_option(struct nmreq_header *hdr, uint32_t type);
void nmreq_free_options(struct nmreq_header *hdr);
const char *nmreq_option_name(uint32_t type);
#define nmreq_foreach_option(h_, o_) \
	for ((o_) = (struct nmreq_option *)(uintptr_t)(h_)->nr_options; (o_) != NULL; \
	     (o_) = (struct nmreq_option *)(uintptr_t)(o_)->nro_next)

typedef void (*nmctx_error_cb)(struct nmctx *, const char *);
typedef void *(*nmctx_malloc_cb)(struct nmctx *, size_t);
typedef void (*nmctx_free_cb)(struct nmctx *, void *);
typedef void (*nmctx_lock_cb)(struct nmctx *, int);

struct nmctx {
	int verbose;
	nmctx_error_cb error;
	nmctx_malloc_cb malloc;
	nmctx_free_cb free;
	nmctx_lock_cb lock; /* 1 takes it, 0 gives it back */
	struct nmem_d *mem_descs;
};

struct nmctx *nmctx_get(void);
struct nmctx *nmctx_set_default(struct nmctx *ctx);
void nmctx_set_threadsafe(void);
void nmctx_ferror(struct nmctx *ctx, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *nmctx_malloc(struct nmctx *ctx, size_t size);
void nmctx_free(struct nmctx *ctx, void *p);
void nmctx_lock(struct nmctx *ctx);
void nmctx_unlock(struct nmctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
