/*
 * Receives COUNT frames and says so. Its port is removed then, and its memory with it: poll has to say so, no packet comes of
 * the zeros that stand there, and none is sent into them.
 */
#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

int
main(int argc, char **argv)
{
	unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 0, got = 0;
	struct nm_desc *d = argc > 1 ? nm_open(argv[1], NULL, 0, NULL) : NULL;
	unsigned char hello[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	struct pollfd fd = { .events = POLLIN };
	struct nm_pkthdr hdr;
	struct netmap_ring *rx, *tx;
	unsigned char all[2048];

	if (d == NULL || nm_inject(d, hello, sizeof(hello)) != (int)sizeof(hello) || ioctl(NETMAP_FD(d), NIOCTXSYNC) < 0)
		return 1;
	/* What says where it is reads as zero, too. */
	rx = NETMAP_RXRING(d->nifp, 0);
	tx = NETMAP_TXRING(d->nifp, 0);
	puts("ready");
	fflush(stdout);
	fd.fd = NETMAP_FD(d);
	while (got < count && poll(&fd, 1, 60000) == 1 && fd.revents == POLLIN) {
		while (nm_nextpkt(d, &hdr) != NULL)
			got++;
	}
	printf("got %u\n", got);
	fflush(stdout);
	/* What wakes it first may be neither packet nor end. */
	while (poll(&fd, 1, 60000) == 1 && !(fd.revents & (POLLERR | POLLHUP))) {
		if (nm_nextpkt(d, &hdr) != NULL) {
			printf("a packet of %u bytes\n", hdr.len);
			return 1;
		}
	}
	if (fd.revents & POLLIN || nm_nextpkt(d, &hdr) != NULL || !nm_ring_empty(rx)) {
		printf("revents %#x, slots %u %u %u\n", (unsigned)fd.revents, rx->head, rx->cur, rx->tail);
		return 1;
	}
	/* Told first, emptied then. */
	while (*(const volatile uint32_t *)&d->nifp->ni_version != 0)
		poll(NULL, 0, 1);
	/* Whatever it says: rings that nobody serves have no room. */
	ioctl(fd.fd, NIOCTXSYNC);
	if (nm_inject(d, hello, sizeof(hello)) != 0 || nm_ring_space(tx) != 0) {
		puts("there is room");
		return 1;
	}
	/* Who was in the middle of a batch goes on at the first slot, and has no more of them than before. */
	rx->head = 5;
	if (nm_ring_next(rx, 5) != 0 || nm_ring_space(rx) != 0) {
		printf("%u slots behind slot 5\n", nm_ring_space(rx));
		return 1;
	}
	/* And writes where its buffer seems to be: over the ring. */
	memset(all, 0xff, sizeof(all));
	memcpy(NETMAP_BUF(tx, tx->slot[tx->head].buf_idx), all, sizeof(all));
	ioctl(fd.fd, NIOCTXSYNC);
	if (tx->head != tx->tail) {
		printf("slots %u %u %u\n", tx->head, tx->cur, tx->tail);
		return 1;
	}
	puts("gone");
	return 0;
}
