/*
 * Requests and responses of one size over one TCP connection, one at a time.
 *
 *   netecho serve PORT                        answers until it is killed, one connection after the other
 *   netecho ADDRESS PORT BYTES MILLISECONDS   asks; prints "812 transactions in 500000000 ns"
 *
 * A connection begins with the size of its messages, 4 bytes in network order. Two system calls for each message, and
 * nothing else: where instructions are emulated, what a larger program does between two messages would be most of the time.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST (1 << 20)
/* Before anything counts: the connection's windows have grown by then. */
#define WARM_UP 8

static char data[MOST];

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* All of it, or 0 at the end of the connection. */
static int take(int fd, void *to, size_t bytes)
{
	while (bytes > 0) {
		ssize_t got = read(fd, to, bytes);

		if (got <= 0)
			return 0;
		to = (char *)to + got;
		bytes -= (size_t)got;
	}
	return 1;
}

static int give(int fd, const void *from, size_t bytes)
{
	while (bytes > 0) {
		ssize_t sent = write(fd, from, bytes);

		if (sent <= 0)
			return 0;
		from = (const char *)from + sent;
		bytes -= (size_t)sent;
	}
	return 1;
}

static void at_once(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int serve(uint16_t port)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(port) };
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	signal(SIGPIPE, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (listener < 0 || bind(listener, (struct sockaddr *)&here, sizeof(here)) != 0 || listen(listener, 4) != 0) {
		fprintf(stderr, "netecho: listening at port %u: %s\n", port, strerror(errno));
		return 1;
	}
	for (;;) {
		uint32_t bytes;
		int fd = accept(listener, NULL, NULL);

		if (fd < 0)
			continue;
		at_once(fd);
		if (take(fd, &bytes, sizeof(bytes)) && (bytes = ntohl(bytes)) <= MOST)
			while (take(fd, data, bytes) && give(fd, data, bytes))
				;
		close(fd);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	long long start = 0, end = 0;
	long done;
	uint32_t bytes, named;
	int fd;

	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		return serve((uint16_t)atoi(argv[2]));
	if (argc != 5 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
		fprintf(stderr, "usage: netecho serve PORT | netecho ADDRESS PORT BYTES MILLISECONDS\n");
		return 2;
	}
	to.sin_port = htons((uint16_t)atoi(argv[2]));
	bytes = (uint32_t)strtoul(argv[3], NULL, 10);
	if (bytes < 1 || bytes > MOST) {
		fprintf(stderr, "netecho: 1 to %d bytes\n", MOST);
		return 2;
	}
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
		fprintf(stderr, "netecho: connecting to %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	at_once(fd);
	named = htonl(bytes);
	give(fd, &named, sizeof(named));
	for (done = -WARM_UP;; done++) {
		if (done == 0) {
			start = now();
			end = start + atoll(argv[4]) * 1000000LL;
		}
		if (done > 0 && now() >= end)
			break;
		if (!give(fd, data, bytes) || !take(fd, data, bytes)) {
			fprintf(stderr, "netecho: %s ended the connection\n", argv[1]);
			return 1;
		}
	}
	printf("%ld transactions in %lld ns\n", done, now() - start);
	return 0;
}
