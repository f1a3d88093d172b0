/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The context of libnetmap's calls: where errors go, where memory comes from, and a lock. */
#include <libnetmap.h>
#include <pthread.h>
#include <stdarg.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void
to_stderr(struct nmctx *ctx, const char *text)
{
	(void)ctx;
	fprintf(stderr, "%s\n", text);
}

static void *
from_libc(struct nmctx *ctx, size_t size)
{
	(void)ctx;
	return malloc(size);
}

static void
to_libc(struct nmctx *ctx, void *p)
{
	(void)ctx;
	free(p);
}

static void
with_mutex(struct nmctx *ctx, int take)
{
	(void)ctx;
	if (take)
		pthread_mutex_lock(&lock);
	else
		pthread_mutex_unlock(&lock);
}

static struct nmctx global = { .verbose = 1, .error = to_stderr, .malloc = from_libc, .free = to_libc, .lock = with_mutex };
static struct nmctx *current = &global;

struct nmctx *
nmctx_get(void)
{
	return current;
}

struct nmctx *
nmctx_set_default(struct nmctx *ctx)
{
	struct nmctx *old = current;

	current = ctx;
	return old;
}

/* It is from the start. */
void
nmctx_set_threadsafe(void)
{
}

void
nmctx_ferror(struct nmctx *ctx, const char *format, ...)
{
	char text[NM_ERRBUF_SIZE];
	int saved = errno;
	va_list list;

	if (!ctx->verbose || ctx->error == NULL)
		return;
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	ctx->error(ctx, text);
	errno = saved;
}

void *
nmctx_malloc(struct nmctx *ctx, size_t size)
{
	return ctx->malloc(ctx, size);
}

void
nmctx_free(struct nmctx *ctx, void *p)
{
	ctx->free(ctx, p);
}

void
nmctx_lock(struct nmctx *ctx)
{
	if (ctx->lock != NULL)
		ctx->lock(ctx, 1);
}

void
nmctx_unlock(struct nmctx *ctx)
{
	if (ctx->lock != NULL)
		ctx->lock(ctx, 0);
}
