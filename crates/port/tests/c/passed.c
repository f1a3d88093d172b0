/*
 * A descriptor in another process: passed by SCM_RIGHTS, kept through an exec, and duplicated by fcntl, where no call of the
 * library sees it. argv: ports A and B, on one switch, of rings with 8 slots. With more arguments, the other process.
 */
#define _GNU_SOURCE
#define NETMAP_WITH_LIBS
#include "check.h"

#include <fcntl.h>
#include <libnetmap.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* What the two tell each other. */
struct told {
	struct nmreq_header hdr;
	struct nmreq_register reg;
};

static void
tell(int socket, const struct told *told, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} space = { .bytes = { 0 } };
	struct iovec part = { .iov_base = (void *)(uintptr_t)told, .iov_len = sizeof(*told) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes,
		.msg_controllen = sizeof(space.bytes) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(int));
	CHECK(sendmsg(socket, &message, 0) == (ssize_t)sizeof(*told));
}

static int
hear(int socket, struct told *told)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} space;
	struct iovec part = { .iov_base = told, .iov_len = sizeof(*told) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes,
		.msg_controllen = sizeof(space.bytes) };
	int fd = -1;

	CHECK(recvmsg(socket, &message, 0) == (ssize_t)sizeof(*told) && CMSG_FIRSTHDR(&message) != NULL);
	if (failures == 0)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}

/* Waits for a word from the other process, and says one. */
static void
take_turns(int socket)
{
	char word = 'x';

	CHECK(send(socket, &word, 1, 0) == 1 && recv(socket, &word, 1, 0) == 1);
}

/* The other process: `socket` brings A's descriptor, `kept` is B's. */
static int
other(int socket, int kept, const char *a_name)
{
	struct nmport_d *a = nmport_new();
	struct netmap_ring *at, *ar;
	struct nm_desc old = { .fd = kept };
	struct told told;
	char pipe[256];

	a->fd = hear(socket, &told);
	if (failures > 0)
		return 1;
	a->hdr = told.hdr;
	a->reg = told.reg;
	a->hdr.nr_body = (uintptr_t)&a->reg;
	a->register_done = 1;
	/* The port has a client, and keeps it. */
	CHECK(nmport_open(a_name) == NULL && errno == EBUSY);
	CHECK(nmport_mmap(a) == 0);
	if (failures > 0)
		return 1;
	at = NETMAP_TXRING(a->nifp, 0);
	ar = NETMAP_RXRING(a->nifp, 0);
	/* Where the first process was: one frame sent, one waiting. */
	INDICES(at, 1, 1, 0);
	await(a->fd, ar, 1);
	release(a->fd, ar);
	INDICES(ar, 1, 1, 1);
	send_one(a->fd, at, 2, 21);
	CHECK(at->head == 2);
	/* The older library, on a descriptor that an exec left open: rings by poll alone. */
	CHECK(recv(socket, &old.req, sizeof(old.req), 0) == (ssize_t)sizeof(old.req));
	old.self = &old;
	CHECK(nm_mmap(&old, NULL) == 0 && old.done_mmap);
	if (failures > 0)
		return 1;
	await(kept, NETMAP_RXRING(old.nifp, 0), 1);
	release(kept, NETMAP_RXRING(old.nifp, 0));
	/* A pipe's end has as many users as want no end of their own. */
	snprintf(pipe, sizeof(pipe), "%s{shared", a_name);
	CHECK(nmport_open(pipe) != NULL);
	snprintf(pipe, sizeof(pipe), "%s{shared/x", a_name);
	CHECK(nmport_open(pipe) == NULL && errno == EBUSY);
	snprintf(pipe, sizeof(pipe), "%s{own", a_name);
	CHECK(nmport_open(pipe) == NULL && errno == EBUSY);
	take_turns(socket);
	/* The first process has closed it. */
	take_turns(socket);
	CHECK(nmport_open(a_name) == NULL && errno == EBUSY);
	send_one(a->fd, at, 2, 22);
	return failures != 0;
}

int
main(int argc, char **argv)
{
	char socket_text[16], kept_text[16], pipe[256], *child[] = { argv[0], argv[1], socket_text, kept_text, NULL };
	struct nmport_d *a, *shared = NULL, *own = NULL;
	struct netmap_ring *at, *ar, *br;
	struct nm_desc *b = NULL;
	struct told told;
	int ends[2], again, status = 1, plain;
	void *mapped;
	pid_t pid;

	if (argc == 4)
		return other(atoi(argv[2]), atoi(argv[3]), argv[1]);
	if (argc != 3 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) < 0)
		return 2;
	CHECK((a = nmport_open(argv[1])) != NULL && (b = nm_open(argv[2], NULL, 0, NULL)) != NULL);
	snprintf(pipe, sizeof(pipe), "%s{shared", argv[1]);
	CHECK((shared = nmport_open(pipe)) != NULL);
	snprintf(pipe, sizeof(pipe), "%s{own/x", argv[1]);
	CHECK((own = nmport_open(pipe)) != NULL);
	if (failures > 0)
		return 1;
	at = NETMAP_TXRING(a->nifp, 0);
	ar = NETMAP_RXRING(a->nifp, 0);
	br = NETMAP_RXRING(b->nifp, 0);
	send_one(a->fd, at, 2, 1);
	await(b->fd, br, 1);
	release(b->fd, br);
	send_one(b->fd, NETMAP_TXRING(b->nifp, 0), 1, 2);

	/* What only the kernel knows of is the same port, too: mapped, synced and waited for. */
	again = fcntl(a->fd, F_DUPFD, 100);
	CHECK(again >= 100 && ioctl(again, NIOCRXSYNC) == 0);
	mapped = mmap(NULL, a->reg.nr_memsize, PROT_READ, MAP_SHARED, again, 0);
	CHECK(mapped != MAP_FAILED && munmap(mapped, a->reg.nr_memsize) == 0);
	await(again, ar, 1);
	CHECK(close(again) == 0);
	plain = open("/dev/null", O_RDONLY);
	CHECK(ioctl(plain, NIOCRXSYNC) == -1 && errno == ENOTTY);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, ends[0], 0) == MAP_FAILED && errno == ENODEV);

	snprintf(socket_text, sizeof(socket_text), "%d", ends[1]);
	snprintf(kept_text, sizeof(kept_text), "%d", b->fd);
	CHECK(posix_spawn(&pid, argv[0], NULL, NULL, child, environ) == 0);
	close(ends[1]);
	told = (struct told){ .hdr = a->hdr, .reg = a->reg };
	tell(ends[0], &told, a->fd);
	CHECK(send(ends[0], &b->req, sizeof(b->req), 0) == (ssize_t)sizeof(b->req));
	take_turns(ends[0]);
	/* Here the rings are where the other has left them. */
	CHECK(at->head == 2 && ar->head == 1);
	send_one(a->fd, at, 2, 4);
	CHECK(at->head == 3);
	await(b->fd, br, 1);
	release(b->fd, br);
	nmport_close(a);
	take_turns(ends[0]);
	await(b->fd, br, 1);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	nmport_close(shared);
	nmport_close(own);
	/* With the last holder it is free; the daemon notices a moment later. */
	while ((a = nmport_open(argv[1])) == NULL && errno == EBUSY)
		;
	CHECK(a != NULL);
	nmport_close(a);
	nm_close(b);
	return failures != 0;
}
