/* traffic: neighbours with verified flows, and attackers that need speed. Written from the specifications
 * (vhost-user, virtio 1.2, vfio-user) for the tests of this folder; it shares no code with the engine.
 *
 *   traffic neighbours [--flow A B] [--both] [--ping C D] [--reconnect]
 *       Drives virtio-net front ends at the sockets A to D until standard input ends. A sends numbered frames
 *       to B (with --both also B to A), at most WINDOW of them under way; every byte of each is compared. C and D
 *       play ping-pong. Prints a JSON object every 100 ms, all counters since the start, and a last one.
 *   traffic flood SOCKET SECONDS [--to MAC] [--from MAC] [--sources N] [--bytes N] [--rate N] [--gso N] [--pieces N]
 *                 [--receive N] [--ring N]
 *       Sends as fast as it can, or `rate` a second; --gso gives a TCP frame to be cut into segments of N bytes,
 *       --pieces spreads a frame over N descriptors, --receive offers N receive buffers and never takes them back.
 *   traffic share VICTIM EVIL MODE SECONDS [IDLE...]
 *       A victim floods by one queue while EVIL, with 16 queues, floods by one of them (MODE flood) or has exactly one frame
 *       there at any time (MODE one) and sends one by each of the others, and by each of 16 of every port IDLE, now and then,
 *       so that all of them go on being polled. How many frames of each were taken.
 *   traffic swap PATH FILE SPARE UID
 *       As that user, puts a link to FILE at PATH as soon as something is there, again and again.
 *   traffic storm SOCKET SECONDS REGISTER VALUE [VALUE]
 *       Writes the values in turn into a 32-bit register of BAR 0 of a vfio-user device, as fast as it can.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_RING 1024
#define WINDOW 128
#define HEADER 12 /* struct virtio_net_hdr_v1 */
#define ETHERTYPE 0x88b5 /* IEEE 802: local experiments */

static void die(const char *what) {
    fprintf(stderr, "traffic: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int dial(const char *path) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (fd < 0) die("socket");
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    return fd;
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

static uint64_t at(struct port *p, const volatile void *x) { return (uint64_t)((const uint8_t *)x - p->base); }

static void layout(struct port *p, struct queue *q, uint64_t *end, uint16_t size, uint32_t each, uint32_t count) {
    uint64_t here = (*end + 4095) & ~4095ull;
    q->desc = (void *)(p->base + here);
    here += 16ull * size;
    q->avail = (void *)(p->base + here);
    here += 6 + 2ull * size;
    here = (here + 4095) & ~4095ull;
    q->used = (void *)(p->base + here);
    here += 6 + 8ull * size;
    here = (here + 4095) & ~4095ull;
    q->buffers = p->base + here;
    *end = here + (uint64_t)each * count;
    q->each = each;
    q->size = size;
}

static void make_memory(struct port *p, uint64_t bytes) {
    p->bytes = (bytes + 4095) & ~4095ull;
    p->memory = memfd_create("neighbour", MFD_CLOEXEC);
    if (p->memory < 0 || ftruncate(p->memory, (off_t)p->bytes) < 0) die("memfd");
    p->base = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->memory, 0);
    if (p->base == MAP_FAILED) die("mmap");
}

static void kick(struct queue *q) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!(q->used->flags & NO_NOTIFY)) {
        uint64_t one = 1;
        if (write(q->kick, &one, 8) < 0 && errno != EAGAIN) die("kick");
    }
}

/* ---- vhost-user, front end (QEMU: docs/interop/vhost-user.rst) */

enum { GET_FEATURES = 1, SET_FEATURES = 2, SET_OWNER = 3, SET_MEM_TABLE = 5, SET_VRING_NUM = 8, SET_VRING_ADDR = 9,
       SET_VRING_BASE = 10, SET_VRING_KICK = 12, SET_VRING_CALL = 13 };
#define VERSION_1 (1ull << 32)

static int tell(int sock, uint32_t request, const void *payload, uint32_t size, int fd) {
    struct { uint32_t request, flags, size; uint8_t payload[256]; } m = {request, 1, size, {0}};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {&m, 12 + size};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    memcpy(m.payload, payload, size);
    if (fd >= 0) {
        h.msg_control = control;
        h.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return sendmsg(sock, &h, MSG_NOSIGNAL) == (ssize_t)(12 + size) ? 0 : -1;
}

static int get_features(int sock, uint64_t *features) {
    struct { uint32_t request, flags, size; uint64_t value; } __attribute__((packed)) answer;
    if (tell(sock, GET_FEATURES, "", 0, -1) < 0) return -1;
    size_t got = 0;
    while (got < sizeof answer) {
        ssize_t n = recv(sock, (char *)&answer + got, sizeof answer - got, 0);
        if (n <= 0) return -1;
        got += (size_t)n;
    }
    *features = answer.value;
    return 0;
}

static int start_queue(struct port *p, uint32_t index, struct queue *q) {
    uint32_t number[2] = {index, q->size};
    if (tell(p->sock, SET_VRING_NUM, number, 8, -1) < 0) return -1;
    number[1] = q->used->idx; /* where the device stopped, as QEMU resumes a split ring */
    if (tell(p->sock, SET_VRING_BASE, number, 8, -1) < 0) return -1;
    struct { uint32_t index, flags; uint64_t desc, used, avail, log; } addr = {
        index, 0, (uintptr_t)q->desc, (uintptr_t)q->used, (uintptr_t)q->avail, 0};
    if (tell(p->sock, SET_VRING_ADDR, &addr, sizeof addr, -1) < 0) return -1;
    uint64_t value = index;
    if (tell(p->sock, SET_VRING_CALL, &value, 8, q->call) < 0) return -1;
    return tell(p->sock, SET_VRING_KICK, &value, 8, q->kick);
}

static int attach(struct port *p) {
    uint64_t offered;
    if ((p->sock = dial(p->path)) < 0) return -1;
    uint64_t wanted = VERSION_1 | p->features;
    if (tell(p->sock, SET_OWNER, "", 0, -1) < 0 || get_features(p->sock, &offered) < 0) goto gone;
    wanted &= offered;
    if (tell(p->sock, SET_FEATURES, &wanted, 8, -1) < 0) goto gone;
    struct { uint32_t count, pad; uint64_t guest, size, user, offset; } table = {
        1, 0, 0, p->bytes, (uintptr_t)p->base, 0};
    if (tell(p->sock, SET_MEM_TABLE, &table, sizeof table, p->memory) < 0) goto gone;
    if (p->rx.size && start_queue(p, 0, &p->rx) < 0) goto gone;
    if (start_queue(p, 1, &p->tx) < 0) goto gone;
    /* Messages are done in order: with this answer both queues run. */
    if (get_features(p->sock, &offered) < 0) goto gone;
    return 0;
gone:
    close(p->sock);
    p->sock = -1;
    return -1;
}

static void bells(struct queue *q) {
    q->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->kick < 0 || q->call < 0) die("eventfd");
    q->avail->flags = NO_INTERRUPT;
}

static void offer(struct queue *q, uint16_t id) {
    q->avail->ring[q->next % q->size] = id;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    q->avail->idx = ++q->next;
}

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
    uint32_t spread[BUCKETS];
    uint64_t longest;
} ping;
static struct flow flows[2];
static int flow_count, again;
static struct port ports[4];
static int port_count;

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

static void report(uint64_t start) {
    printf("{\"t\": %.4f, \"at\": %.4f", (double)(now() - start) / 1e9, (double)now() / 1e9);
    printf(", \"flows\": [");
    for (int i = 0; i < flow_count; i++) {
        struct flow *f = &flows[i];
        printf("%s{\"sent\": %" PRIu64 ", \"got\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"doubled\": %" PRIu64
               ", \"altered\": %" PRIu64 ", \"stalls\": %" PRIu64 ", \"late\": %" PRIu64 ", \"under_way\": %u}",
               i ? ", " : "", f->sent, f->got, f->lost, f->doubled, f->altered, f->stalls, f->late, under_way(f->from));
    }
    printf("], \"ping\": {\"answers\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"longest_ns\": %" PRIu64 ", \"spread\": [",
           ping.answers, ping.lost, ping.longest);
    int first = 1;
    for (int i = 0; i < BUCKETS; i++) {
        if (!ping.spread[i]) continue;
        printf("%s[%d, %u]", first ? "" : ", ", i, ping.spread[i]);
        first = 0;
    }
    ping.longest = 0;
    memset(ping.spread, 0, sizeof ping.spread);
    uint64_t foreign = 0, hangups = 0;
    for (int i = 0; i < port_count; i++) foreign += ports[i].foreign, hangups += ports[i].hangups;
    printf("]}, \"foreign\": %" PRIu64 ", \"hangups\": %" PRIu64 "}\n", foreign, hangups);
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

static int neighbours(int argc, char **argv) {
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
                ping.sent_at = t;
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
                stop_at = t + 8000000000u;
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

/* ---- flood */

static int parse_mac(const char *text, uint8_t *mac) {
    return sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) == 6 ? 0 : -1;
}

static void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }

static int flood(int argc, char **argv) {
    if (argc < 4) return 2;
    struct port *p = &ports[0];
    uint8_t to[6] = {255, 255, 255, 255, 255, 255}, from[6] = {2, 0, 0, 0, 0xee, 1};
    double seconds = atof(argv[3]);
    uint32_t sources = 1, bytes = 60, gso = 0, pieces = 1, offered = 0, ring = 256;
    double rate = 0;
    for (int i = 4; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--to")) { if (parse_mac(v, to)) return 2; }
        else if (!strcmp(argv[i], "--from")) { if (parse_mac(v, from)) return 2; }
        else if (!strcmp(argv[i], "--sources")) sources = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--bytes")) bytes = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--gso")) gso = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--pieces")) pieces = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--rate")) rate = atof(v);
        else if (!strcmp(argv[i], "--receive")) offered = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--ring")) ring = (uint32_t)atoi(v);
        else return 2;
    }
    if (ring > MAX_RING || ring & (ring - 1) || pieces == 0 || pieces > ring || bytes < 60 || bytes > 65549 || (pieces > 1 && (HEADER + bytes) / pieces == 0)) return 2;
    uint32_t frames = ring / pieces, each = (HEADER + bytes + 63) & ~63u;
    p->path = argv[2];
    p->features = 1ull << 0 | 1ull << 11 | 1ull << 12; /* CSUM, HOST_TSO4, HOST_TSO6 */
    make_memory(p, (uint64_t)frames * each + (4u << 20));
    uint64_t end = 0;
    if (offered) {
        layout(p, &p->rx, &end, 256, 2048, 256);
        bells(&p->rx);
        for (uint16_t i = 0; i < offered && i < 256; i++) {
            p->rx.desc[i].addr = at(p, p->rx.buffers + (size_t)i * 2048);
            p->rx.desc[i].len = 2048;
            p->rx.desc[i].flags = F_WRITE;
            offer(&p->rx, i);
        }
    }
    layout(p, &p->tx, &end, (uint16_t)ring, each, frames);
    if (end > p->bytes) { fprintf(stderr, "traffic: %" PRIu64 " bytes of memory are too few\n", p->bytes); return 1; }
    bells(&p->tx);
    for (uint32_t f = 0; f < frames; f++) {
        uint8_t *b = p->tx.buffers + (size_t)f * each, *frame = b + HEADER;
        memset(b, 0, each);
        memcpy(frame, to, 6);
        memcpy(frame + 6, from, 6);
        put16(frame + 12, ETHERTYPE);
        if (gso) { /* IPv4 and TCP, the checksum and the cutting left to the device */
            put16(frame + 12, 0x0800);
            uint8_t *ip = frame + 14, *tcp = ip + 20;
            ip[0] = 0x45;
            put16(ip + 2, bytes - 14 > 65535 ? 65535 : bytes - 14);
            ip[8] = 64;
            ip[9] = 6;
            ip[12] = 10; ip[15] = 1; ip[16] = 10; ip[19] = 2;
            put16(tcp, 1000); put16(tcp + 2, 2000);
            tcp[12] = 5 << 4;
            tcp[13] = 0x10;
            b[0] = 1;                     /* NEEDS_CSUM */
            b[1] = 1;                     /* GSO_TCPV4 */
            b[2] = 54;                    /* hdr_len */
            b[4] = (uint8_t)gso; b[5] = (uint8_t)(gso >> 8);
            b[6] = 34;                    /* csum_start */
            b[8] = 16;                    /* csum_offset */
        }
        uint32_t total = HEADER + bytes, step = total / pieces, done = 0;
        for (uint32_t k = 0; k < pieces; k++) {
            uint32_t id = f * pieces + k, len = k + 1 == pieces ? total - done : step;
            p->tx.desc[id].addr = at(p, b) + done;
            p->tx.desc[id].len = len;
            p->tx.desc[id].flags = k + 1 == pieces ? 0 : F_NEXT;
            p->tx.desc[id].next = (uint16_t)(id + 1);
            done += len;
        }
    }
    if (attach(p) < 0) die(p->path);
    uint64_t start = now(), until = start + (uint64_t)(seconds * 1e9), sent = 0, gone = 0, source = 0;
    uint32_t place = 0, out = 0;
    for (uint64_t t = start; t < until && !gone; t = now()) {
        uint16_t used = p->tx.used->idx;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        out -= (uint16_t)(used - p->tx.seen);
        p->tx.seen = used;
        uint64_t due = rate > 0 ? (uint64_t)((double)(t - start) * rate / 1e9) + 1 : UINT64_MAX;
        int any = 0;
        while (out < frames && sent < due && any < 64) {
            uint8_t *frame = p->tx.buffers + (size_t)place * each + HEADER;
            if (sources > 1) {
                source = (source + 1) % sources;
                frame[8] = (uint8_t)(source >> 16); frame[9] = (uint8_t)(source >> 8); frame[10] = (uint8_t)source;
            }
            offer(&p->tx, (uint16_t)(place * pieces));
            place = (place + 1) % frames;
            out++;
            sent++;
            any++;
        }
        if (any) kick(&p->tx);
        else if (rate > 0) {
            struct timespec nap = {0, 200000};
            nanosleep(&nap, NULL);
        }
        char c;
        if (sent % 64 == 0 && recv(p->sock, &c, 1, MSG_DONTWAIT) == 0) gone = 1;
    }
    printf("{\"sent\": %" PRIu64 ", \"seconds\": %.3f, \"hung_up\": %s, \"left\": %u}\n", sent, (double)(now() - start) / 1e9,
           gone ? "true" : "false", out);
    return 0;
}

/* ---- storm of register writes */

static int storm(int argc, char **argv) {
    if (argc < 6) return 2;
    uint64_t reg = strtoull(argv[4], NULL, 0);
    uint32_t values[2] = {(uint32_t)strtoul(argv[5], NULL, 0), (uint32_t)strtoul(argv[argc > 6 ? 6 : 5], NULL, 0)};
    int sock = dial(argv[2]);
    if (sock < 0) die(argv[2]);
    struct header { uint16_t id, command; uint32_t size, flags, error; };
    static const char json[] = "{\"capabilities\":{\"max_msg_fds\":8}}";
    struct { struct header h; uint16_t major, minor; char json[sizeof json]; } __attribute__((packed)) version = {
        {0, 1, sizeof version, 0, 0}, 0, 1, ""};
    memcpy(version.json, json, sizeof json);
    if (send(sock, &version, sizeof version, MSG_NOSIGNAL) != sizeof version) die("VERSION");
    struct header answer;
    if (recv(sock, &answer, sizeof answer, MSG_WAITALL) != sizeof answer || answer.size < sizeof answer) die("VERSION");
    static char rest[65536];
    size_t more = answer.size - sizeof answer;
    if (more > sizeof rest || recv(sock, rest, more, MSG_WAITALL) != (ssize_t)more) die("VERSION");
    struct { struct header h; uint64_t offset; uint32_t region, count, value; } __attribute__((packed)) write = {
        {1, 10, sizeof write, 0, 0}, reg, 0, 4, 0};
    struct { struct header h; uint64_t offset; uint32_t region, count; } __attribute__((packed)) done;
    // PCI command register: memory space and bus master. Without these the device's queues are never served.
    struct { struct header h; uint64_t offset; uint32_t region, count; uint16_t value; } __attribute__((packed)) command = {
        {2, 10, sizeof command, 0, 0}, 4, 7, 2, 6};
    if (send(sock, &command, sizeof command, MSG_NOSIGNAL) != sizeof command
        || recv(sock, &done, sizeof done, MSG_WAITALL) != sizeof done) die("command register");
    uint64_t start = now(), until = start + (uint64_t)(atof(argv[3]) * 1e9), count = 0;
    int gone = 0;
    while (now() < until && !gone) {
        write.h.id++;
        write.value = values[count % 2];
        if (send(sock, &write, sizeof write, MSG_NOSIGNAL) != sizeof write
            || recv(sock, &done, sizeof done.h, MSG_WAITALL) != sizeof done.h) { gone = 1; break; }
        size_t tail = done.h.size - sizeof done.h;
        if (tail > sizeof rest || (tail && recv(sock, rest, tail, MSG_WAITALL) != (ssize_t)tail)) gone = 1;
        count++;
    }
    printf("{\"writes\": %" PRIu64 ", \"seconds\": %.3f, \"hung_up\": %s}\n", count, (double)(now() - start) / 1e9, gone ? "true" : "false");
    return 0;
}

/* ---- a victim, and neighbours with many queues and next to nothing to send */

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

static int share(int argc, char **argv) {
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

/* ---- a process that swaps a new file for a link */

static int swap(int argc, char **argv) {
    if (argc != 6) return 2;
    uid_t user = (uid_t)atoi(argv[5]);
    if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)) die("another user");
    for (;;) {
        struct stat s;
        if (symlink(argv[3], argv[4]) && errno != EEXIST) die("symlink");
        while (lstat(argv[2], &s)) continue;
        if (!S_ISLNK(s.st_mode) && rename(argv[4], argv[2]) == 0) {
            /* Long enough for a process that follows it; then the link goes, so that the next one can be made. */
            for (uint64_t t = now(); now() - t < 200000;) continue;
        }
        unlink(argv[2]);
    }
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    int code = 2;
    if (argc > 1 && !strcmp(argv[1], "neighbours")) code = neighbours(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "flood")) code = flood(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "storm")) code = storm(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "share")) code = share(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "swap")) code = swap(argc, argv);
    if (code == 2) fprintf(stderr, "traffic: wrong arguments; see the head of traffic.c\n");
    return code;
}
