/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The system calls that netmap gives a meaning to, under their own names so that programs need not be changed: this
 * library is linked before the C library, or loaded before it. A call that does not concern a port goes to the kernel at
 * once.
 */
#define _GNU_SOURCE
#include "nm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int
is_device(const char *path)
{
	return path != NULL && strcmp(path, NETMAP_DEVICE_NAME) == 0;
}

static int
open_at(int at, const char *path, int flags, mode_t mode)
{
	return is_device(path) ? nm_open_device(flags) : (int)syscall(SYS_openat, at, path, flags, mode);
}

static mode_t
mode_of(int flags, va_list list)
{
	return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

#define OPEN(name, at, parameters, last) \
	int name parameters \
	{ \
		va_list list; \
		mode_t mode; \
		va_start(list, last); \
		mode = mode_of(flags, list); \
		va_end(list); \
		return open_at(at, path, flags, mode); \
	}

OPEN(open, AT_FDCWD, (const char *path, int flags, ...), flags)
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), flags)
OPEN(openat, at, (int at, const char *path, int flags, ...), flags)
OPEN(openat64, at, (int at, const char *path, int flags, ...), flags)

/* What fortified programs call. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);

int
__open_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags, 0);
}

int
__open64_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags, 0);
}

static void *
map_file(struct nm_file *f, void *at, size_t len, int protection, int flags, off_t offset)
{
	/* What lies behind the pools is not the program's. */
	if (f->port == NULL || offset != 0 || len > f->port->ring.info.memsize) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, at, len, protection, flags, f->port->ring.memory->file, 0);
}

void *
mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset)
{
	struct nm_file *f = flags & MAP_ANONYMOUS ? NULL : nm_file(fd);

	void *mapped;

	if (f != NULL)
		return map_file(f, at, len, protection, flags, offset);
	mapped = (void *)syscall(SYS_mmap, at, len, protection, flags, fd, offset);
	/* What a descriptor of ours says that this process has not used yet. */
	if (mapped == MAP_FAILED && errno == ENODEV && !(flags & MAP_ANONYMOUS)) {
		f = nm_file_or_passed(fd);
		if (f != NULL)
			return map_file(f, at, len, protection, flags, offset);
		errno = ENODEV;
	}
	return mapped;
}

void *
mmap64(void *at, size_t len, int protection, int flags, int fd, off64_t offset)
{
	return mmap(at, len, protection, flags, fd, offset);
}

int
ioctl(int fd, unsigned long request, ...)
{
	struct nm_file *f = nm_file(fd);
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (f == NULL && nm_is_request(request))
		f = nm_file_or_passed(fd);
	if (f != NULL)
		return nm_ioctl(f, fd, request, arg);
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

int
close(int fd)
{
	if (nm_file(fd) != NULL)
		nm_forget(fd);
	else
		nm_epoll_forget(fd);
	return (int)syscall(SYS_close, fd);
}

int
dup(int fd)
{
	return nm_share(fd, (int)syscall(SYS_dup, fd));
}

int
dup3(int fd, int to, int flags)
{
	int result;

	if (nm_file(to) != NULL && fd != to)
		nm_forget(to);
	result = (int)syscall(SYS_dup3, fd, to, flags);
	return nm_file(fd) != NULL ? nm_share(fd, result) : result;
}

int
dup2(int fd, int to)
{
	/* The kernel's dup3 refuses what dup2 allows. */
	return fd == to ? (syscall(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : to) : dup3(fd, to, 0);
}
