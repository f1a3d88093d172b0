/*
 * Numbered frames through /dev/netmap: netmapio INTERFACE send|receive COUNT.
 *
 * Every frame has 60 bytes: to the broadcast address, type 0x88b5 (for local experiments), its number, and bytes that
 * follow from the number. The receiver says "ready" when it has the rings, and at the end "received 1000, wrong 0";
 * other frames are passed over. No library: what a program finds is what the kernel offers.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/netmap_user.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TYPE = 0x88b5, FRAME = 60, WAIT_MS = 30000 };

static struct netmap_if *nifp;
static size_t before; /* bytes of virtio-net header */
static int fd;

static void check(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static int control(const char *name, uint16_t type, void *body)
{
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_reqtype = type, .nr_body = (uintptr_t)body };

	strncpy(h.nr_name, name, sizeof(h.nr_name) - 1);
	return ioctl(fd, NIOCCTRL, &h);
}

static void await(short events)
{
	struct pollfd wait = { .fd = fd, .events = events };

	check(poll(&wait, 1, WAIT_MS) == 1 && !(wait.revents & POLLERR), "poll");
}

static void make(uint8_t *frame, uint32_t number)
{
	uint16_t type = htons(TYPE);
	uint32_t i, wire = htonl(number);

	memset(frame, 0xff, 6);
	memset(frame + 6, 2, 6);
	memcpy(frame + 12, &type, 2);
	memcpy(frame + 14, &wire, 4);
	for (i = 18; i < FRAME; i++)
		frame[i] = (uint8_t)(number + i);
}

/* Whether it is one of ours. */
static int is_numbered(const uint8_t *frame, size_t len, uint32_t *number)
{
	uint16_t type;

	if (len < FRAME)
		return 0;
	memcpy(&type, frame + 12, 2);
	memcpy(number, frame + 14, 4);
	*number = ntohl(*number);
	return type == htons(TYPE);
}

static void send_all(uint32_t count)
{
	struct netmap_ring *ring = NETMAP_TXRING(nifp, 0);
	uint32_t sent = 0;

	while (sent < count) {
		await(POLLOUT);
		for (; sent < count && !nm_ring_empty(ring); sent++) {
			struct netmap_slot *slot = &ring->slot[ring->head];
			uint8_t *buf = (uint8_t *)NETMAP_BUF(ring, slot->buf_idx);

			memset(buf, 0, before);
			make(buf + before, sent);
			slot->len = (uint16_t)(before + FRAME);
			slot->flags = 0;
			ring->head = ring->cur = nm_ring_next(ring, ring->head);
		}
	}
	check(ioctl(fd, NIOCTXSYNC) == 0, "NIOCTXSYNC");
	/* Until the host has taken everything. */
	while (nm_tx_pending(ring)) {
		ring->cur = ring->tail;
		await(POLLOUT);
	}
	printf("sent %u\n", sent);
}

static void receive_all(uint32_t count)
{
	uint32_t received = 0, wrong = 0, number, i;
	uint8_t expected[FRAME];

	while (received < count) {
		await(POLLIN);
		for (i = 0; i < nifp->ni_rx_rings; i++) {
			struct netmap_ring *ring = NETMAP_RXRING(nifp, i);

			for (; !nm_ring_empty(ring); ring->head = ring->cur = nm_ring_next(ring, ring->head)) {
				struct netmap_slot *slot = &ring->slot[ring->head];
				const uint8_t *frame = (const uint8_t *)NETMAP_BUF(ring, slot->buf_idx) + before;

				if (slot->len < before || !is_numbered(frame, slot->len - before, &number))
					continue;
				make(expected, received++);
				wrong += memcmp(frame, expected, FRAME) != 0;
			}
		}
	}
	printf("received %u, wrong %u\n", received, wrong);
}

int main(int argc, char **argv)
{
	struct nmreq_port_hdr header = { 0 };
	struct nmreq_register reg = { .nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_ACCEPT_VNET_HDR };
	void *memory;

	if (argc != 4) {
		fprintf(stderr, "usage: netmapio INTERFACE send|receive COUNT\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	check(fd >= 0, NETMAP_DEVICE_NAME);
	check(control(argv[1], NETMAP_REQ_PORT_HDR_GET, &header) == 0, "PORT_HDR_GET");
	check(control(argv[1], NETMAP_REQ_REGISTER, &reg) == 0, "REGISTER");
	memory = mmap(NULL, reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(memory != MAP_FAILED, "mmap");
	nifp = NETMAP_IF(memory, reg.nr_offset);
	before = header.nr_hdr_len;
	puts("ready");
	if (strcmp(argv[2], "send") == 0)
		send_all((uint32_t)atol(argv[3]));
	else
		receive_all((uint32_t)atol(argv[3]));
	return 0;
}
