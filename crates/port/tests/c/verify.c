/*
 * Sends or receives numbered frames as `sidecore pkt-gen --verify` does (docs/pkt-gen.md), with netmap's API alone:
 * verify tx|rx PORT COUNT. Contents, order in each flow and counts are verified; nothing may be lost.
 */
#include <libnetmap.h>
#include <net/netmap_user.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { KIND = 42, FLOW = 44, NUMBER = 46, SUM = 54, FILLER = 58, SHORTEST = 60, LONGEST = 1514 };
enum { FLOWS = 7, WINDOW = 512, ACK_EVERY = 128, PATIENCE = 20 };
#define ODD 0x9e3779b97f4a7c15ull

static struct nmport_d *port;
static uint64_t count;

static uint64_t
mix(uint64_t hash, const unsigned char *p, unsigned len)
{
	uint64_t word;

	for (; len >= 8; len -= 8, p += 8) {
		memcpy(&word, p, 8);
		hash = (hash ^ word) * ODD;
	}
	if (len > 0) {
		word = 0;
		memcpy(&word, p, len);
		hash = (hash ^ word) * ODD;
	}
	return hash;
}

static uint32_t
checksum(const unsigned char *frame, unsigned len)
{
	return mix(mix(len, frame, SUM), frame + FILLER, len - FILLER) >> 32;
}

static void
seal(unsigned char *frame, unsigned len, const char *kind, uint16_t flow, uint64_t number)
{
	uint64_t word = number * ODD;
	uint32_t sum;
	unsigned at;

	memcpy(frame + KIND, kind, 2);
	memcpy(frame + FLOW, &flow, 2);
	memcpy(frame + NUMBER, &number, 8);
	for (at = FILLER; at < len; at += 8) {
		word++;
		memcpy(frame + at, &word, len - at < 8 ? len - at : 8);
	}
	sum = checksum(frame, len);
	memcpy(frame + SUM, &sum, 4);
}

/* Whether the frame is of this kind and unchanged. */
static bool
is(const unsigned char *frame, unsigned len, const char *kind)
{
	uint32_t sum;

	if (len < SHORTEST || memcmp(frame + KIND, kind, 2) != 0)
		return false;
	sum = checksum(frame, len);
	return memcmp(frame + SUM, &sum, 4) == 0;
}

static uint64_t
number_of(const unsigned char *frame)
{
	uint64_t number;

	memcpy(&number, frame + NUMBER, 8);
	return number;
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void
fail(const char *why)
{
	fprintf(stderr, "verify: %s\n", why);
	exit(1);
}

static void
wait_for(short events, int timeout)
{
	struct pollfd fd = { .fd = port->fd, .events = events };

	if (poll(&fd, 1, timeout) < 0 || (fd.revents & (POLLERR | POLLHUP)) != 0)
		fail("the port is gone, or its ring was reset");
}

/* The next slot to send, or NULL if there is no room. */
static struct netmap_slot *
room(struct netmap_ring **ring)
{
	*ring = NETMAP_TXRING(port->nifp, port->first_tx_ring);
	return nm_ring_empty(*ring) ? NULL : &(*ring)->slot[(*ring)->head];
}

static void
push(struct netmap_ring *ring, unsigned len)
{
	ring->slot[ring->head].len = (uint16_t)len;
	ring->slot[ring->head].flags = 0;
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
}

/* Ethernet, IPv4 and UDP headers: from address 10.3.0.1, port 1 + flow. */
static void
headers(unsigned char *frame, unsigned len, unsigned flow, const unsigned char *to)
{
	static const unsigned char fixed[FLOW] = {
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0xc, 8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17,
		0, 0, 10, 3, 0, 1, 10, 1, 0, 1, 0, 1, 0x4, 0xd2,
	};
	unsigned i, sum = 0;

	memcpy(frame, fixed, KIND);
	memcpy(frame, to, 6);
	frame[16] = (unsigned char)((len - 14) >> 8);
	frame[17] = (unsigned char)(len - 14);
	frame[35] = (unsigned char)(1 + flow);
	frame[38] = (unsigned char)((len - 34) >> 8);
	frame[39] = (unsigned char)(len - 34);
	for (i = 14; i < 34; i += 2)
		sum += (unsigned)frame[i] << 8 | frame[i + 1];
	sum = ~((sum & 0xffff) + (sum >> 16));
	frame[24] = (unsigned char)(sum >> 8);
	frame[25] = (unsigned char)sum;
}

/* Reads acknowledgements; the greatest count. `peer` gets the address that it came from. */
static bool
acknowledged(uint64_t *most, unsigned char *peer)
{
	bool any = false;
	unsigned i;

	for (i = port->first_rx_ring; i <= port->last_rx_ring; i++) {
		struct netmap_ring *ring = NETMAP_RXRING(port->nifp, i);

		while (!nm_ring_empty(ring)) {
			struct netmap_slot *slot = &ring->slot[ring->head];
			unsigned char *frame = (unsigned char *)NETMAP_BUF(ring, slot->buf_idx);

			if (is(frame, slot->len, "AC")) {
				if (!any || number_of(frame) > *most)
					*most = number_of(frame);
				memcpy(peer, frame + 6, 6);
				any = true;
			}
			ring->head = ring->cur = nm_ring_next(ring, ring->head);
		}
	}
	return any;
}

static void
send_all(void)
{
	unsigned char peer[6] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
	uint64_t base = 0, sent = 0, acked = 0, said;
	struct netmap_ring *ring;
	struct netmap_slot *slot;
	double heard = now();

	while (!acknowledged(&base, peer)) {
		unsigned char *frame;

		if (now() - heard > PATIENCE)
			fail("nobody answers");
		slot = room(&ring);
		if (slot != NULL) {
			frame = (unsigned char *)NETMAP_BUF(ring, slot->buf_idx);
			headers(frame, SHORTEST, 0, peer);
			seal(frame, SHORTEST, "HE", 0, 0);
			push(ring, SHORTEST);
		}
		wait_for(POLLIN, 100);
	}
	heard = now();
	said = base;
	while (acked < count) {
		while (sent < count && sent - acked < WINDOW && (slot = room(&ring)) != NULL) {
			uint64_t number = sent / FLOWS;
			unsigned flow = (unsigned)(sent % FLOWS);
			unsigned len = number % 64 == 0 ? SHORTEST + (unsigned)(number / 64 % (LONGEST - SHORTEST + 1)) : SHORTEST;
			unsigned char *frame = (unsigned char *)NETMAP_BUF(ring, slot->buf_idx);

			headers(frame, len, flow, peer);
			seal(frame, len, "DA", (uint16_t)flow, number);
			push(ring, len);
			sent++;
		}
		wait_for(sent < count && sent - acked < WINDOW ? POLLIN | POLLOUT : POLLIN, 1000);
		if (acknowledged(&said, peer) && said - base > acked) {
			acked = said - base;
			heard = now();
		}
		if (now() - heard > PATIENCE) {
			fprintf(stderr, "verify: of %llu frames %llu have arrived\n", (unsigned long long)sent,
			    (unsigned long long)acked);
			exit(1);
		}
	}
	printf("sent %llu\n", (unsigned long long)sent);
}

static void
acknowledge(const unsigned char *theirs, uint64_t verified)
{
	struct netmap_ring *ring;
	struct netmap_slot *slot;
	unsigned char *frame;

	while ((slot = room(&ring)) == NULL)
		wait_for(POLLOUT, 1000);
	frame = (unsigned char *)NETMAP_BUF(ring, slot->buf_idx);
	memcpy(frame, theirs, SHORTEST);
	memcpy(frame, theirs + 6, 6);
	memcpy(frame + 6, "\x02\0\0\0\0\x0d", 6);
	memcpy(frame + 26, theirs + 30, 4);
	memcpy(frame + 30, theirs + 26, 4);
	memcpy(frame + 34, theirs + 36, 2);
	memcpy(frame + 36, theirs + 34, 2);
	seal(frame, SHORTEST, "AC", 0, verified);
	push(ring, SHORTEST);
	ioctl(port->fd, NIOCTXSYNC);
}

static void
receive_all(void)
{
	static uint64_t next[1 << 16];
	unsigned char theirs[SHORTEST];
	uint64_t verified = 0, acked = 0, flows = 0;
	bool greeted = false;
	double heard = now();

	printf("ready\n");
	fflush(stdout);
	while (verified < count) {
		bool asked = false, any = false;
		unsigned i;

		for (i = port->first_rx_ring; i <= port->last_rx_ring; i++) {
			struct netmap_ring *ring = NETMAP_RXRING(port->nifp, i);

			while (!nm_ring_empty(ring) && verified - acked < ACK_EVERY) {
				struct netmap_slot *slot = &ring->slot[ring->head];
				unsigned char *frame = (unsigned char *)NETMAP_BUF(ring, slot->buf_idx);

				if (is(frame, slot->len, "HE")) {
					memcpy(theirs, frame, SHORTEST);
					greeted = asked = true;
				} else if (is(frame, slot->len, "DA")) {
					uint16_t flow;

					memcpy(&flow, frame + FLOW, 2);
					if (number_of(frame) != next[flow]) {
						fprintf(stderr, "verify: flow %u: %llu after %llu\n", flow,
						    (unsigned long long)number_of(frame), (unsigned long long)next[flow]);
						exit(1);
					}
					flows += next[flow]++ == 0;
					verified++;
				} else {
					fail("a frame that is not as it was sent");
				}
				ring->head = ring->cur = nm_ring_next(ring, ring->head);
				any = true;
			}
		}
		if (greeted && (asked || verified - acked >= ACK_EVERY || (!any && verified > acked) || verified == count)) {
			acknowledge(theirs, verified);
			acked = verified;
		}
		if (any)
			heard = now();
		else if (now() - heard > PATIENCE)
			fail("nothing comes any more");
		/* Whatever has come is taken before a sleep: with something in hand this only gives slots back. */
		wait_for(POLLIN, verified > acked ? 0 : 1000);
	}
	printf("verified %llu frames of %llu flows\n", (unsigned long long)verified, (unsigned long long)flows);
}

int
main(int argc, char **argv)
{
	if (argc != 4)
		fail("usage: verify tx|rx PORT COUNT");
	port = nmport_open(argv[2]);
	if (port == NULL)
		return 1;
	count = strtoull(argv[3], NULL, 10);
	if (strcmp(argv[1], "tx") == 0)
		send_all();
	else
		receive_all();
	/* What is still with the port goes out before it is closed. */
	while (nm_tx_pending(NETMAP_TXRING(port->nifp, port->first_tx_ring)))
		if (ioctl(port->fd, NIOCTXSYNC) < 0)
			return 1;
	nmport_close(port);
	return 0;
}
