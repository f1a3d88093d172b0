/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Requests to the daemon beyond one port: what crates/port/src/vale.rs does, in C. */
#define _GNU_SOURCE
#include "vale.h"

#include "ring.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Tells the daemon's broker of the interface that a request may lead to: only operators may, and the daemon itself is none. */
static void
name_interface(const char *name, uint32_t verb)
{
	const char *colon = strrchr(name, ':');
	const char *from = colon ? colon + 1 : name;
	size_t len = strlen(from);
	int host = len > 0 && from[len - 1] == '^';
	char text[64] = "i";

	if (verb != VALE_ATTACH && !(verb == VALE_OPEN && host))
		return;
	len -= host;
	if (len == 0 || len >= sizeof(text))
		return;
	memcpy(text + 1, from, len);
	ring_tell(".operators", text, len + 1);
}

int
vale_ask(const char *name, struct vale_ask *ask, struct vale_reply *reply, int *lease)
{
	size_t len = strnlen(name, sizeof(ask->name));
	ssize_t got;
	int fd;

	if (len == sizeof(ask->name)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	ask->magic = VALE_MAGIC;
	ask->version = VALE_VERSION;
	memset(ask->name, 0, sizeof(ask->name));
	memcpy(ask->name, name, len);
	name_interface(name, ask->verb);
	fd = ring_call(".netmap");
	if (fd < 0)
		return -1;
	got = send(fd, ask, sizeof(*ask), MSG_NOSIGNAL);
	if (got == (ssize_t)sizeof(*ask))
		got = recv(fd, reply, sizeof(*reply), MSG_WAITALL);
	if (got != (ssize_t)sizeof(*reply)) {
		int error = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? ETIMEDOUT : EPROTO;

		close(fd);
		errno = error;
		return -1;
	}
	reply->name[sizeof(reply->name) - 1] = reply->text[sizeof(reply->text) - 1] = '\0';
	if (reply->magic != VALE_MAGIC || reply->version != VALE_VERSION || reply->error != 0) {
		close(fd);
		errno = reply->magic == VALE_MAGIC && reply->error != 0 ? (int)reply->error : EPROTO;
		return -1;
	}
	if (lease != NULL)
		*lease = fd;
	else
		close(fd);
	return 0;
}
