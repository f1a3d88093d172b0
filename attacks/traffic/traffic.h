/* What the parts of `traffic` have in common: a port, which is a vhost-user front end in memory of its own, and its two
 * virtio queues. Each part is one file, named after the command's first word. */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEADER 12 /* struct virtio_net_hdr_v1 */
#define ETHERTYPE 0x88b5 /* IEEE 802: local experiments */

/* The parts: 0, 1, or 2 for wrong arguments. */
int neighbours(int argc, char **argv);
int flood(int argc, char **argv);
int storm(int argc, char **argv);
int share(int argc, char **argv);
int swap(int argc, char **argv);

/* Ends the program with the reason of the system call `what`. */
void die(const char *what);
/* Connects to a Unix socket; -1 and errno if that fails. */
int dial(const char *path);

static inline uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- virtio ring, split, little endian (virtio 1.2, 2.7) */

struct desc { uint64_t addr; uint32_t len; uint16_t flags, next; };
struct avail { uint16_t flags, idx, ring[]; };
struct used_elem { uint32_t id, len; };
struct used { uint16_t flags, idx; struct used_elem ring[]; };
#define F_NEXT 1
#define F_WRITE 2
#define NO_NOTIFY 1    /* used.flags */
#define NO_INTERRUPT 1 /* avail.flags */

struct queue {
    volatile struct desc *desc;
    volatile struct avail *avail;
    volatile struct used *used;
    uint8_t *buffers;
    uint32_t each;   /* bytes of a buffer */
    uint16_t size;   /* descriptors */
    uint16_t next;   /* next available index */
    uint16_t seen;   /* used entries seen */
    uint16_t free;   /* transmit: buffers that we own */
    int kick, call;
};

struct port {
    const char *path;
    int sock, memory;
    uint8_t *base;
    uint64_t bytes;
    uint64_t features;
    struct queue rx, tx;
    uint8_t mac[6];
    uint64_t foreign; /* frames that are not ours */
    uint64_t hangups;
};

static inline uint64_t at(struct port *p, const volatile void *x) { return (uint64_t)((const uint8_t *)x - p->base); }

static inline void kick(struct queue *q) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!(q->used->flags & NO_NOTIFY)) {
        uint64_t one = 1;
        if (write(q->kick, &one, 8) < 0 && errno != EAGAIN) die("kick");
    }
}

static inline void offer(struct queue *q, uint16_t id) {
    q->avail->ring[q->next % q->size] = id;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    q->avail->idx = ++q->next;
}

static inline void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }

/* Memory for all queues, then each queue's place in it from `*end` on, then its eventfds. */
void make_memory(struct port *p, uint64_t bytes);
void layout(struct port *p, struct queue *q, uint64_t *end, uint16_t size, uint32_t each, uint32_t count);
void bells(struct queue *q);

/* ---- vhost-user, front end (QEMU: docs/interop/vhost-user.rst) */

enum { GET_FEATURES = 1, SET_FEATURES = 2, SET_OWNER = 3, SET_MEM_TABLE = 5, SET_VRING_NUM = 8, SET_VRING_ADDR = 9,
       SET_VRING_BASE = 10, SET_VRING_KICK = 12, SET_VRING_CALL = 13 };
#define VERSION_1 (1ull << 32)

/* One message, with a descriptor unless `fd` is -1; -1 if the other end has gone. So with all of these. */
int tell(int sock, uint32_t request, const void *payload, uint32_t size, int fd);
int get_features(int sock, uint64_t *features);
int start_queue(struct port *p, uint32_t index, struct queue *q);
/* Connects, and starts the receive queue, if there is one, and the transmit queue. */
int attach(struct port *p);

#endif
