/* A port: memory, queues, and the vhost-user messages that start them. */
#include "traffic.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

void die(const char *what) {
    fprintf(stderr, "traffic: %s: %s\n", what, strerror(errno));
    exit(1);
}

int dial(const char *path) {
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

void layout(struct port *p, struct queue *q, uint64_t *end, uint16_t size, uint32_t each, uint32_t count) {
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

void make_memory(struct port *p, uint64_t bytes) {
    p->bytes = (bytes + 4095) & ~4095ull;
    p->memory = memfd_create("neighbour", MFD_CLOEXEC);
    if (p->memory < 0 || ftruncate(p->memory, (off_t)p->bytes) < 0) die("memfd");
    p->base = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->memory, 0);
    if (p->base == MAP_FAILED) die("mmap");
}

void bells(struct queue *q) {
    q->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->kick < 0 || q->call < 0) die("eventfd");
    q->avail->flags = NO_INTERRUPT;
}

int tell(int sock, uint32_t request, const void *payload, uint32_t size, int fd) {
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

int get_features(int sock, uint64_t *features) {
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

int start_queue(struct port *p, uint32_t index, struct queue *q) {
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

int attach(struct port *p) {
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
