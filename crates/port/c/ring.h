/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The engine's side of a ring port as C sees it: messages of the attach socket, and the words by which slots change
 * hands. Same layouts as `sidecore_abi::ring`, which explains them; a test compares the two.
 */
#ifndef SIDECORE_RING_H
#define SIDECORE_RING_H

#include <net/netmap.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RING_MAGIC 0x676e6972u /* "ring" */
#define RING_VERSION 3
#define RING_MESSAGE 128
#define RING_MAX 16

enum { RING_ATTACH = 1, RING_INFO, RING_SET_HEADER, RING_PIPE, RING_MONITOR };
enum { RING_MASTER = 1, RING_SLAVE }; /* ends of a pipe */
/* What a monitor sees; RELEASED: what is received not before its receiver has released it. */
enum { RING_SEES_SENT = 1, RING_SEES_RECEIVED = 2, RING_SEES_RELEASED = 4, RING_SEES_END_SHIFT = 8 };
enum { RING_EXCLUSIVE = 1 }; /* a flag of RING_PIPE: the end has no other holder */

struct ring_client_words {
	_Alignas(128) _Atomic uint32_t head;
	_Atomic uint32_t cur;
	_Atomic uint32_t ticket;
	/* Between the processes that share the descriptor: tickets so far, and resets that one of them has seen. */
	_Atomic uint32_t tickets;
	_Atomic uint32_t seen;
};

struct ring_engine_words {
	_Alignas(128) _Atomic uint32_t hwcur;
	_Atomic uint32_t hwtail;
	_Atomic uint32_t ticket;
	_Atomic uint32_t resets;
	_Atomic uint32_t reason;
};

struct ring_words {
	struct ring_client_words client;
	struct ring_engine_words engine;
};

struct ring_request {
	uint32_t magic, version, ask, value;
	char pipe[64];
	uint32_t extra_bufs, flags;
	uint8_t zero[RING_MESSAGE - 88];
};

struct ring_answer {
	uint32_t magic, version, error, ring_size;
	uint64_t memsize, total, words, ring_pool, buf_pool, interface;
	uint32_t bufs, buf_size, extra_bufs, tx_rings, rx_rings, tx_slots, rx_slots, header, mtu, mem_id, pipes, end,
	    host_rings, first_buf, own_bufs, users;
};

_Static_assert(sizeof(struct ring_request) == RING_MESSAGE, "request");
_Static_assert(sizeof(struct ring_answer) == RING_MESSAGE, "answer");
_Static_assert(sizeof(struct ring_words) == 256, "words");

/* One end of a ring. */
struct ring_link {
	struct ring_words *words;
	uint32_t num_slots;
	int kick; /* eventfd of the engine, or -1 */
	int wake; /* pipe that wakes us */
	uint32_t ticket, answered;
	uint32_t given; /* our head as published */
	/* Of a pipe: the ring across, its owner's wake-up, our own ring, and our head as published. */
	struct ring_words *far;
	int far_wake, sends;
	struct netmap_ring *ring, *far_ring;
};

/* A mapped region: a port and its pipes share one, at one address. */
struct ring_memory {
	struct ring_memory *next;
	char *base;
	uint64_t total, ino;
	int file, users;
};

/* An attached port. */
struct ring_port {
	int control;
	int lease, host_lease; /* what keeps a port that was made on demand, and its host rings, or -1 */
	char home[NETMAP_REQ_IFNAMSIZ]; /* the port whose socket it was asked for at */
	struct ring_memory *memory;
	char *base;
	struct ring_answer info;
	struct ring_link tx[RING_MAX], rx[RING_MAX];
};

/* A connection to the socket of port `name`, or -1 and errno. */
int ring_call(const char *name);
void ring_tell(const char *name, const void *text, size_t length);

/* 0, or -1 and errno. */
int ring_ask(const char *name, uint32_t ask, uint32_t value, struct ring_answer *answer);
/* `home`: the port whose memory it shall lie in if it is a pipe of a port that is not there; NULL: any. */
int ring_attach(struct ring_port *port, const char *name, const struct nmreq_register *reg, const char *home);
void ring_detach(struct ring_port *port);

/* The descriptors of a port: the connection, the leases (-1: none), and those of the daemon's answer. */
#define RING_FDS (4 + 3 * RING_MAX)
int ring_fds(const struct ring_port *port, int fds[RING_FDS]);
/* A port of which `port->info` and the descriptors are known; these are taken over. 0, or -1 and errno. */
int ring_adopt(struct ring_port *port, const int *fds, int count);

/* The region in `file`, which is taken over, mapped; NULL and errno. */
struct ring_memory *ring_map(int file, const struct ring_answer *info);
/* A port that is memory alone, as `reg` says; 0, or -1 and errno. */
int ring_null(struct ring_port *port, const char *name, const struct nmreq_register *reg, const char *home);

void ring_give(struct ring_link *link, uint32_t head, uint32_t cur);
uint32_t ring_start(struct ring_link *link);
/* Whether another process, to which the descriptor was passed, has moved our head; `ring_start` is where it is now. */
int ring_moved(struct ring_link *link);
uint32_t ring_hwcur(struct ring_link *link);
uint32_t ring_hwtail(struct ring_link *link);
int ring_was_reset(struct ring_link *link);
uint32_t ring_arm(struct ring_link *link);
void ring_disarm(struct ring_link *link);

#endif
