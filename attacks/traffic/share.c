/* share: a victim, and neighbours with many queues and next to nothing to send. */
#include "traffic.h"

#define PAIRS 16
struct many { struct port port; struct queue queues[2 * PAIRS]; };

/* Connects with so many pairs of queues; nothing is received. Every frame is the same, for a station that is not there. */
static void attach_pairs(struct many *m, const char *path, int pairs, uint16_t ring, uint8_t number) {
    enum { SET_PROTOCOL_FEATURES = 16, SET_VRING_ENABLE = 18, P_MQ = 1, PROTOCOL = 1 << 30, MULTIQUEUE = 1 << 22 | 1 << 17 };
    struct port *p = &m->port;
    uint64_t end = 0, offered, wanted, protocol = P_MQ;
    uint8_t mac[6] = {2, 0, 0, 0, 0xee, number};
    p->path = path;
    make_memory(p, (uint64_t)pairs * (2ull * (24 * ring + 16384) + 128ull * ring));
    for (int i = 0; i < 2 * pairs; i++) {
        struct queue *q = &m->queues[i];
        layout(p, q, &end, ring, 128, i % 2 ? ring : 0);
        bells(q);
        q->free = ring;
        for (uint16_t k = 0; i % 2 && k < ring; k++) {
            uint8_t *b = q->buffers + 128 * k;
            memcpy(b + HEADER, (uint8_t[]){2, 0, 0, 0, 0x77, 1}, 6);
            memcpy(b + HEADER + 6, mac, 6);
            put16(b + HEADER + 12, ETHERTYPE);
            q->desc[k].addr = at(p, b);
            q->desc[k].len = HEADER + 60;
        }
    }
    if (end > p->bytes) { fprintf(stderr, "traffic: %" PRIu64 " bytes of memory are too few\n", p->bytes); exit(1); }
    if ((p->sock = dial(path)) < 0) die(path);
    struct { uint32_t count, pad; uint64_t guest, size, user, offset; } table = {1, 0, 0, p->bytes, (uintptr_t)p->base, 0};
    if (tell(p->sock, SET_OWNER, "", 0, -1) < 0 || get_features(p->sock, &offered) < 0) die("features");
    wanted = offered & (VERSION_1 | PROTOCOL | MULTIQUEUE);
    if (tell(p->sock, SET_FEATURES, &wanted, 8, -1) < 0 || tell(p->sock, SET_PROTOCOL_FEATURES, &protocol, 8, -1) < 0
        || tell(p->sock, SET_MEM_TABLE, &table, sizeof table, p->memory) < 0) die("memory");
    for (uint32_t i = 0; i < 2u * (uint32_t)pairs; i++) {
        uint32_t on[2] = {i, 1};
        if (start_queue(p, i, &m->queues[i]) < 0 || tell(p->sock, SET_VRING_ENABLE, on, 8, -1) < 0) die("queue");
    }
    if (get_features(p->sock, &offered) < 0) die("queues");
}

/* What was taken is ours again; how many that were. */
static uint16_t taken(struct queue *q) {
    uint16_t used = q->used->idx, count = (uint16_t)(used - q->seen);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    q->seen = used;
    q->free = (uint16_t)(q->free + count);
    return count;
}

static void put(struct queue *q, uint16_t count) {
    for (uint16_t i = 0; i < count; i++) q->avail->ring[(uint16_t)(q->next + i) % q->size] = (uint16_t)(q->next + i) % q->size;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    q->next = (uint16_t)(q->next + count);
    q->free = (uint16_t)(q->free - count);
    q->avail->idx = q->next;
    kick(q);
}

/* One frame by each queue from `first` on, unless one is there still. */
static void sign_of_life(struct many *m, int first) {
    for (int i = first; i < PAIRS; i++) {
        struct queue *q = &m->queues[2 * i + 1];
        taken(q);
        if (q->free == q->size) put(q, 1);
    }
}

int share(int argc, char **argv) {
    enum { MOST = 16 };
    static struct many victim, evil, idle[MOST];
    int idles = argc - 6, flood = argc > 5 && !strcmp(argv[4], "flood");
    if (argc < 6 || idles > MOST) return 2;
    attach_pairs(&victim, argv[2], 1, 1024, 1);
    attach_pairs(&evil, argv[3], PAIRS, 256, 2);
    for (int i = 0; i < idles; i++) attach_pairs(&idle[i], argv[6 + i], PAIRS, 256, (uint8_t)(3 + i));
    struct queue *v = &victim.queues[1], *e = &evil.queues[1];
    /* 256 empty visits, and a queue is looked at less often: the rounds take longer, the more queues there are. */
    uint64_t period = 200000u * (uint64_t)(1 + idles), start = now(), until = start + (uint64_t)(atof(argv[5]) * 1e9), next = start;
    uint64_t got = 0, had = 0;
    for (uint64_t t = start; t < until; t = now()) {
        for (int k = 0; k < 64; k++) {
            if (k % 4 == 0) {
                got += taken(v);
                if (v->free >= 256) put(v, v->free);
            }
            had += taken(e);
            if (flood ? e->free >= 64 : e->free == e->size) put(e, flood ? e->free : 1);
        }
        if (!flood && t >= next) {
            sign_of_life(&evil, 1);
            for (int i = 0; i < idles; i++) sign_of_life(&idle[i], 0);
            next = t + period;
        }
    }
    printf("{\"victim\": %" PRIu64 ", \"evil\": %" PRIu64 ", \"seconds\": %.3f}\n", got, had, (double)(now() - start) / 1e9);
    return 0;
}
