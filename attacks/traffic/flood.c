/* flood: frames from one port as fast as it can, or at a rate. */
#include "traffic.h"

#include <sys/socket.h>

#define RING 256

static int parse_mac(const char *text, uint8_t *mac) {
    return sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) == 6 ? 0 : -1;
}

int flood(int argc, char **argv) {
    if (argc < 4) return 2;
    static struct port one;
    struct port *p = &one;
    uint8_t to[6] = {255, 255, 255, 255, 255, 255}, from[6] = {2, 0, 0, 0, 0xee, 1};
    double seconds = atof(argv[3]);
    uint32_t sources = 1, bytes = 60, gso = 0;
    double rate = 0;
    for (int i = 4; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--to")) { if (parse_mac(v, to)) return 2; }
        else if (!strcmp(argv[i], "--from")) { if (parse_mac(v, from)) return 2; }
        else if (!strcmp(argv[i], "--sources")) sources = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--bytes")) bytes = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--gso")) gso = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--rate")) rate = atof(v);
        else return 2;
    }
    if (bytes < 60 || bytes > 65549) return 2;
    uint32_t each = (HEADER + bytes + 63) & ~63u;
    p->path = argv[2];
    p->features = 1ull << 0 | 1ull << 11 | 1ull << 12; /* CSUM, HOST_TSO4, HOST_TSO6 */
    make_memory(p, (uint64_t)RING * each + (4u << 20));
    uint64_t end = 0;
    layout(p, &p->tx, &end, RING, each, RING);
    if (end > p->bytes) { fprintf(stderr, "traffic: %" PRIu64 " bytes of memory are too few\n", p->bytes); return 1; }
    bells(&p->tx);
    for (uint32_t f = 0; f < RING; f++) {
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
        p->tx.desc[f].addr = at(p, b);
        p->tx.desc[f].len = HEADER + bytes;
        p->tx.desc[f].flags = 0;
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
        while (out < RING && sent < due && any < 64) {
            uint8_t *frame = p->tx.buffers + (size_t)place * each + HEADER;
            if (sources > 1) {
                source = (source + 1) % sources;
                frame[8] = (uint8_t)(source >> 16); frame[9] = (uint8_t)(source >> 8); frame[10] = (uint8_t)source;
            }
            offer(&p->tx, (uint16_t)place);
            place = (place + 1) % RING;
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
