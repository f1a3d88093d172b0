/* Sends COUNT numbered frames, as netmap programs do: nmport_open, poll, NETMAP_TXRING. */
#include <errno.h>
#include <libnetmap.h>
#include <net/netmap_user.h>
#include <poll.h>
#include <stdlib.h>

static unsigned
length(uint64_t number)
{
	return number % 16 == 0 ? 60 + (unsigned)(number / 16 % 1455) : 60 + (unsigned)(number % 5);
}

int
main(int argc, char **argv)
{
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, sent = 0;
	struct nmport_d *d = argc > 1 ? nmport_open(argv[1]) : NULL;
	struct pollfd fd;
	unsigned i;

	if (d == NULL)
		return 1;
	fd.fd = d->fd;
	fd.events = POLLOUT;
	while (sent < count) {
		if (poll(&fd, 1, 10000) != 1 || fd.revents != POLLOUT) {
			fprintf(stderr, "poll: revents %#x, %s\n", (unsigned)fd.revents, strerror(errno));
			return 1;
		}
		for (i = d->first_tx_ring; i <= d->last_tx_ring; i++) {
			struct netmap_ring *ring = NETMAP_TXRING(d->nifp, i);
			uint32_t head = ring->head;
			uint32_t space = nm_ring_space(ring);

			for (; space > 0 && sent < count; space--, sent++) {
				struct netmap_slot *slot = &ring->slot[head];
				unsigned char *p = (unsigned char *)NETMAP_BUF(ring, slot->buf_idx);
				unsigned k, len = length(sent);

				memcpy(p, "\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x88\xb5", 14);
				memcpy(p + 14, &sent, sizeof(sent));
				for (k = 22; k < len; k++)
					p[k] = (unsigned char)(sent + k);
				slot->len = (uint16_t)len;
				slot->flags = 0;
				head = nm_ring_next(ring, head);
			}
			ring->head = ring->cur = head;
		}
	}
	for (i = d->first_tx_ring; i <= d->last_tx_ring; i++) {
		while (nm_tx_pending(NETMAP_TXRING(d->nifp, i)))
			if (ioctl(d->fd, NIOCTXSYNC) < 0)
				return 1;
	}
	printf("sent %llu\n", (unsigned long long)sent);
	nmport_close(d);
	return 0;
}
