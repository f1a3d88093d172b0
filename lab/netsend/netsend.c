/*
 * Sends datagrams as fast as a socket takes them: netsend ADDRESS PORT BYTES COUNT.
 * Prints how many were sent and how many nanoseconds it took, "sent 1000 in 25000000 ns".
 *
 * The load of the paper's Figure 4. One system call for each, and nothing else: where instructions are emulated, what
 * other programs do between two datagrams would be most of the time.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv)
{
	static char data[1472];
	struct sockaddr_in to = { .sin_family = AF_INET };
	size_t bytes;
	long count, sent;
	long long start;
	int fd;

	if (argc != 5 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
		fprintf(stderr, "usage: netsend ADDRESS PORT BYTES COUNT\n");
		return 2;
	}
	to.sin_port = htons((unsigned short)atoi(argv[2]));
	bytes = strtoul(argv[3], NULL, 10);
	count = atol(argv[4]);
	if (bytes > sizeof(data) || count < 1) {
		fprintf(stderr, "netsend: at most %zu bytes, at least one datagram\n", sizeof(data));
		return 2;
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
		fprintf(stderr, "netsend: connecting to %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	start = now();
	for (sent = 0; sent < count; sent++) {
		if (send(fd, data, bytes, 0) < 0) {
			fprintf(stderr, "netsend: datagram %ld: %s\n", sent, strerror(errno));
			return 1;
		}
	}
	printf("sent %ld in %lld ns\n", sent, now() - start);
	return 0;
}
