/*
 * Receives COUNT numbered frames through the older calls, nm_open and nm_nextpkt, and checks contents and order. It
 * says hello first, so that the switch knows it, and prints "ready".
 */
#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>
#include <errno.h>
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
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, next = 0, number;
	struct nm_desc *d = argc > 1 ? nm_open(argv[1], NULL, 0, NULL) : NULL;
	unsigned char hello[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	struct nm_pkthdr hdr;
	struct pollfd fd;
	unsigned char *p;
	unsigned k;

	if (d == NULL || nm_inject(d, hello, sizeof(hello)) != (int)sizeof(hello) || ioctl(NETMAP_FD(d), NIOCTXSYNC) < 0)
		return 1;
	while (nm_tx_pending(NETMAP_TXRING(d->nifp, 0)))
		ioctl(NETMAP_FD(d), NIOCTXSYNC);
	puts("ready");
	fflush(stdout);
	fd.fd = NETMAP_FD(d);
	fd.events = POLLIN;
	while (next < count) {
		if (poll(&fd, 1, 10000) != 1 || fd.revents != POLLIN) {
			fprintf(stderr, "frame %llu: poll: revents %#x, %s\n", (unsigned long long)next,
			    (unsigned)fd.revents, strerror(errno));
			return 1;
		}
		while ((p = nm_nextpkt(d, &hdr)) != NULL) {
			memcpy(&number, p + 14, sizeof(number));
			if (number != next || hdr.len != length(next)) {
				fprintf(stderr, "frame %llu: number %llu of %u bytes came\n",
				    (unsigned long long)next, (unsigned long long)number, hdr.len);
				return 1;
			}
			for (k = 22; k < hdr.len; k++) {
				if (p[k] != (unsigned char)(number + k)) {
					fprintf(stderr, "frame %llu: byte %u is wrong\n", (unsigned long long)next, k);
					return 1;
				}
			}
			next++;
		}
	}
	printf("received %llu\n", (unsigned long long)next);
	return nm_close(d);
}
