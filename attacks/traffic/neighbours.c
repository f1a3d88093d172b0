/* neighbours: flows of numbered frames, of which every byte is compared, and ping-pong. */
#include "traffic.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define WINDOW 128

/* ---- frames */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Every 64th frame is longer, of a length of its own. */
static uint32_t length_of(uint64_t seq) { return seq % 64 ? 62 : 62 + 8 * (uint32_t)(mix(seq) % 180); }

enum { HELLO = 1, NUMBERED, PING, PONG };
struct body { uint32_t magic; uint16_t kind, flow; uint64_t seq; uint64_t fill[]; } __attribute__((packed));
#define MAGIC 0x6e656967u

static uint32_t compose(uint8_t *frame, const uint8_t *to, const uint8_t *from, uint16_t kind, uint16_t flow, uint64_t seq) {
    uint32_t bytes = kind == NUMBERED ? length_of(seq) : 62;
    memcpy(frame, to, 6);
    memcpy(frame + 6, from, 6);
    frame[12] = ETHERTYPE >> 8;
    frame[13] = ETHERTYPE & 255;
    struct body b = {MAGIC, kind, flow, seq};
    memcpy(frame + 14, &b, sizeof b);
    uint64_t word = mix(seq ^ (uint64_t)flow << 56);
    for (uint32_t i = 14 + sizeof b; i + 8 <= bytes; i += 8, word += 0x0101010101010101u) memcpy(frame + i, &word, 8);
    return bytes;
}

/* ---- neighbours */

#define BUCKETS 512
#define REMEMBERED 65536
struct flow {
    struct port *from, *to;
    uint16_t number;
    uint64_t sent, got, lost, doubled, altered, expect, last, stalls, late;
    uint64_t have[REMEMBERED]; /* number + 1 of the frame that came last in this place */
};
static struct ping {
    struct port *from, *to;
    uint64_t seq, sent_at, answers, lost;
    int waiting;
    long preempted; /* how often this program had been when it was sent */
    uint32_t spread[BUCKETS];
    uint32_t kept[BUCKETS]; /* of those in which this program kept its processor */
    uint64_t longest;
} ping;
static struct flow flows[2];
static int flow_count, again;
static struct port ports[4];
static int port_count;

/* How often the scheduler has taken the processor from this program. Guests of their own would each have one. */
static long preemptions(void) {
    struct rusage used;
    return getrusage(RUSAGE_SELF, &used) ? -1 : used.ru_nivcsw;
}

/* Logarithmic, 16 steps for each power of two. */
static int bucket(uint64_t ns) {
    if (ns < 16) return (int)ns;
    int top = 63 - __builtin_clzll(ns);
    int b = (top - 3) * 16 + (int)((ns >> (top - 4)) & 15);
    return b < BUCKETS ? b : BUCKETS - 1;
}

static uint8_t *reserve(struct port *p) {
    struct queue *q = &p->tx;
    if (!q->free) {
        uint16_t used = q->used->idx;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        q->free = (uint16_t)(q->free + (uint16_t)(used - q->seen));
        q->seen = used;
        if (!q->free) return NULL;
    }
    return q->buffers + (size_t)(q->next % q->size) * q->each;
}

static void commit(struct port *p, uint32_t bytes) {
    struct queue *q = &p->tx;
    uint16_t id = q->next % q->size;
    q->desc[id].addr = at(p, q->buffers + (size_t)id * q->each);
    q->desc[id].len = HEADER + bytes;
    q->desc[id].flags = 0;
    q->free--;
    offer(q, id);
}

static void say_one(struct port *from, const uint8_t *to, uint16_t kind, uint64_t seq) {
    uint8_t *b = reserve(from);
    if (!b) return;
    memset(b, 0, HEADER);
    commit(from, compose(b + HEADER, to, from->mac, kind, 0, seq));
    kick(&from->tx);
}

static void take(struct port *p, const uint8_t *frame, uint32_t bytes, uint64_t t) {
    struct body b;
    static uint8_t wanted[2048];
    if (bytes < 14 + sizeof b || frame[12] != ETHERTYPE >> 8 || frame[13] != (ETHERTYPE & 255)) { p->foreign++; return; }
    memcpy(&b, frame + 14, sizeof b);
    if (b.magic != MAGIC) { p->foreign++; return; }
    if (memcmp(frame, p->mac, 6)) { p->foreign++; return; } /* flooded: for another one */
    if (b.kind == PING && p == ping.to) { say_one(p, ping.from->mac, PONG, b.seq); return; }
    if (b.kind == PONG && p == ping.from) {
        if (ping.waiting && b.seq == ping.seq) {
            uint64_t ns = t - ping.sent_at;
            ping.spread[bucket(ns)]++;
            if (preemptions() == ping.preempted) ping.kept[bucket(ns)]++;
            if (ns > ping.longest) ping.longest = ns;
            ping.answers++;
            ping.waiting = 0;
        }
        return;
    }
    if (b.kind != NUMBERED || b.flow >= flow_count || flows[b.flow].to != p) { p->foreign++; return; }
    struct flow *f = &flows[b.flow];
    if (b.seq >= f->sent || bytes != length_of(b.seq)
        || (compose(wanted, p->mac, f->from->mac, NUMBERED, b.flow, b.seq), memcmp(wanted, frame, bytes))) { f->altered++; return; }
    uint64_t *have = &f->have[b.seq % REMEMBERED];
    if (*have == b.seq + 1 || b.seq + REMEMBERED < f->sent) { f->doubled++; return; }
    *have = b.seq + 1;
    if (b.seq < f->expect) { /* given up, and here after all */
        f->lost--;
        f->late++;
    } else {
        f->lost += b.seq - f->expect;
        f->expect = b.seq + 1;
    }
    f->got++;
    f->last = t;
}

static int receive(struct port *p) {
    struct queue *q = &p->rx;
    uint16_t used = q->used->idx;
    int count = 0;
    if (used == q->seen) return 0;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint64_t t = now();
    while (q->seen != used && count < 64) {
        volatile struct used_elem *e = &q->used->ring[q->seen % q->size];
        uint32_t id = e->id, len = e->len;
        if (id >= q->size || len < HEADER || len > q->each) { fprintf(stderr, "traffic: used %u, %u bytes\n", id, len); exit(1); }
        take(p, q->buffers + (size_t)id * q->each + HEADER, len - HEADER, t);
        q->seen++;
        offer(q, (uint16_t)id);
        count++;
    }
    kick(q);
    return count;
}

static int pump(struct flow *f, uint64_t t, int stop) {
    uint64_t out = f->sent - f->expect;
    int count = 0;
    if (!stop && out && t > f->last && t - f->last > 200000000u) { /* go on without them; those that come after all are counted as late */
        f->lost += out;
        f->expect = f->sent;
        f->stalls++;
        f->last = t;
        out = 0;
    }
    if (stop || f->from->sock < 0) return 0;
    if (!out) f->last = t;
    for (; out < WINDOW && count < 32; out++, count++) {
        uint8_t *b = reserve(f->from);
        if (!b) break;
        memset(b, 0, HEADER);
        commit(f->from, compose(b + HEADER, f->to->mac, f->from->mac, NUMBERED, f->number, f->sent));
        f->sent++;
    }
    if (count) kick(&f->from->tx);
    return count;
}

/* Frames that the other side has not given back: each of them is still to arrive or to be dropped. */
static uint16_t under_way(struct port *p) { return p->sock < 0 ? 0 : (uint16_t)(p->tx.next - p->tx.used->idx); }

static void print_spread(const char *name, uint32_t *spread) {
    int first = 1;
    printf(", \"%s\": [", name);
    for (int i = 0; i < BUCKETS; i++) {
        if (!spread[i]) continue;
        printf("%s[%d, %u]", first ? "" : ", ", i, spread[i]);
        first = 0;
        spread[i] = 0;
    }
    printf("]");
}

static void report(uint64_t start) {
    printf("{\"t\": %.4f, \"at\": %.4f", (double)(now() - start) / 1e9, (double)now() / 1e9);
    printf(", \"flows\": [");
    for (int i = 0; i < flow_count; i++) {
        struct flow *f = &flows[i];
        printf("%s{\"sent\": %" PRIu64 ", \"got\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"doubled\": %" PRIu64
               ", \"altered\": %" PRIu64 ", \"stalls\": %" PRIu64 ", \"late\": %" PRIu64 ", \"under_way\": %u}",
               i ? ", " : "", f->sent, f->got, f->lost, f->doubled, f->altered, f->stalls, f->late, under_way(f->from));
    }
    printf("], \"ping\": {\"answers\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"longest_ns\": %" PRIu64, ping.answers, ping.lost, ping.longest);
    print_spread("spread", ping.spread);
    print_spread("kept", ping.kept);
    ping.longest = 0;
    uint64_t foreign = 0, hangups = 0;
    for (int i = 0; i < port_count; i++) foreign += ports[i].foreign, hangups += ports[i].hangups;
    printf("}, \"foreign\": %" PRIu64 ", \"hangups\": %" PRIu64 "}\n", foreign, hangups);
    if (fflush(stdout)) exit(0);
}

static struct port *neighbour(const char *path) {
    struct port *p = &ports[port_count];
    p->path = path;
    p->sock = -1;
    make_memory(p, 2 << 20);
    uint64_t end = 0;
    layout(p, &p->rx, &end, 256, 2048, 256);
    layout(p, &p->tx, &end, 256, 2048, 256);
    bells(&p->rx);
    bells(&p->tx);
    p->tx.free = p->tx.size;
    memcpy(p->mac, (uint8_t[]){2, 0, 0, 0, 0xaa, (uint8_t)(port_count + 1)}, 6);
    for (uint16_t i = 0; i < p->rx.size; i++) {
        p->rx.desc[i].addr = at(p, p->rx.buffers + (size_t)i * p->rx.each);
        p->rx.desc[i].len = p->rx.each;
        p->rx.desc[i].flags = F_WRITE;
        offer(&p->rx, i);
    }
    if (attach(p) < 0) die(path);
    port_count++;
    return p;
}

static void look_after(struct port *p) {
    if (p->sock >= 0) {
        char c;
        ssize_t n = recv(p->sock, &c, 1, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            close(p->sock);
            p->sock = -1;
            p->hangups++;
        }
    } else if (again && attach(p) == 0) {
        uint64_t one = 1;
        if (write(p->tx.kick, &one, 8) < 0 || write(p->rx.kick, &one, 8) < 0) return;
    }
}

static void add_flow(struct port *from, struct port *to) {
    struct flow *f = &flows[flow_count];
    f->from = from;
    f->to = to;
    f->number = (uint16_t)flow_count++;
}

int neighbours(int argc, char **argv) {
    int both = 0, ended = 0;
    struct port *a = NULL, *b = NULL;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--flow") && i + 2 < argc) {
            a = neighbour(argv[i + 1]);
            b = neighbour(argv[i + 2]);
            i += 2;
        } else if (!strcmp(argv[i], "--ping") && i + 2 < argc) {
            ping.from = neighbour(argv[i + 1]);
            ping.to = neighbour(argv[i + 2]);
            i += 2;
        } else if (!strcmp(argv[i], "--both")) both = 1;
        else if (!strcmp(argv[i], "--reconnect")) again = 1;
        else return 2;
    }
    if (a) add_flow(a, b);
    if (a && both) add_flow(b, a);
    /* The switch knows a pure receiver from its first frame. */
    if (b) say_one(b, a->mac, HELLO, 0);
    if (ping.to) say_one(ping.to, ping.from->mac, HELLO, 0);
    uint64_t start = now(), next = start + 100000000u, look = start, stop_at = 0;
    for (;;) {
        uint64_t t = now();
        int work = 0;
        for (int i = 0; i < port_count; i++) work += receive(&ports[i]);
        for (int i = 0; i < flow_count; i++) work += pump(&flows[i], t, ended);
        if (ping.from) {
            if (ping.waiting && t - ping.sent_at > 1000000000u) {
                ping.lost++;
                ping.waiting = 0;
            }
            if (!ping.waiting && !ended && ping.from->sock >= 0) {
                ping.seq++;
                ping.preempted = preemptions();
                ping.sent_at = now();
                ping.waiting = 1;
                say_one(ping.from, ping.to->mac, PING, ping.seq);
            }
        }
        if (t >= next) {
            report(start);
            next = t + 100000000u;
        }
        if (t >= look) {
            struct pollfd in = {.fd = 0, .events = POLLIN};
            char c;
            for (int i = 0; i < port_count; i++) look_after(&ports[i]);
            if (!ended && poll(&in, 1, 0) > 0 && read(0, &c, 1) == 0) {
                ended = 1;
                stop_at = t + 60000000000u;
            }
            look = t + 10000000u;
        }
        if (ended) {
            /* A frame is given back when it has arrived or was dropped: then what has not come does not come, however long it took. */
            int settled = !ping.waiting;
            for (int i = 0; i < flow_count; i++) settled &= !under_way(flows[i].from);
            if (settled || t > stop_at) {
                __atomic_thread_fence(__ATOMIC_ACQUIRE);
                for (int i = 0; i < port_count; i++)
                    while (receive(&ports[i])) continue;
                break;
            }
        }
        (void)work;
    }
    for (int i = 0; i < flow_count; i++) {
        flows[i].lost += flows[i].sent - flows[i].expect;
        flows[i].expect = flows[i].sent;
    }
    report(start);
    return 0;
}
