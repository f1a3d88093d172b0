/* Names, options and the context, without a daemon: what is read, what is refused, and that refusals change nothing. */
#include "check.h"

#include <libnetmap.h>

static int errors;
static const char *seen;

static void
count_errors(struct nmctx *ctx, const char *text)
{
	(void)ctx;
	(void)text;
	errors++;
}

/* `text` is port `name`, mode, ring and flags as given, and `rest` behind it. */
static void
good(const char *text, const char *name, uint32_t mode, uint16_t ring, uint64_t flags, uint16_t mem, const char *rest)
{
	struct nmreq_header h;
	struct nmreq_register reg = { 0 };
	const char *p = text;

	nmreq_header_init(&h, NETMAP_REQ_REGISTER, &reg);
	if (nmreq_header_decode(&p, &h, nmctx_get()) < 0 || nmreq_register_decode(&p, &reg, nmctx_get()) < 0 ||
	    strcmp(h.nr_name, name) != 0 || reg.nr_mode != mode || reg.nr_ringid != ring || reg.nr_flags != flags ||
	    reg.nr_mem_id != mem || strcmp(p, rest) != 0 || h.nr_body != (uintptr_t)&reg) {
		fprintf(stderr, "%s: name %s mode %u ring %u flags %#llx rest \"%s\"\n", text, h.nr_name, reg.nr_mode,
		    reg.nr_ringid, (unsigned long long)reg.nr_flags, p);
		failures++;
	}
}

static void
bad(const char *text)
{
	struct nmreq_header h, as_was;
	struct nmreq_register reg = { .nr_extra_bufs = 7 };
	const char *p = text;
	int before = errors;

	nmreq_header_init(&h, NETMAP_REQ_REGISTER, &reg);
	as_was = h;
	errno = 0;
	if (nmreq_header_decode(&p, &h, nmctx_get()) < 0) {
		CHECK(p == text && memcmp(&h, &as_was, sizeof(h)) == 0);
	} else {
		const char *q = p;

		CHECK(nmreq_register_decode(&p, &reg, nmctx_get()) < 0);
		CHECK(p == q && reg.nr_mode == 0 && reg.nr_flags == 0 && reg.nr_extra_bufs == 7);
	}
	if (errno != EINVAL || errors != before + 1) {
		fprintf(stderr, "%s: errno %d\n", text, errno);
		failures++;
	}
}

static int
take(struct nmreq_parse_ctx *p)
{
	seen = p->keys[1] != NULL ? strdup(p->keys[1]) : NULL;
	return p->keys[0] != NULL && strcmp(p->keys[0], "5") == 0 ? 0 : -2;
}

int
main(void)
{
	struct nmreq_opt_parser parser = { .prefix = "two-words", .parse = take, .default_key = 0, .nr_keys = 2,
		.keys = { { .key = "num", .id = 0, .flags = NMREQ_OPTK_MUSTSET },
			{ .key = "some_text", .id = 1, .flags = NMREQ_OPTK_ALLOWEMPTY } } };
	struct nmctx mine = *nmctx_get(), *old;
	struct nmreq_header h;
	struct nmreq_option a = { .nro_reqtype = NETMAP_REQ_OPT_CSB }, b = { .nro_reqtype = NETMAP_REQ_OPT_OFFSETS };
	struct nmport_d *d, *c;

	mine.error = count_errors;
	old = nmctx_set_default(&mine);
	CHECK(old != &mine && nmctx_get() == &mine);
	nmctx_set_threadsafe();
	nmctx_lock(&mine);
	nmctx_unlock(&mine);

	good("netmap:eth0", "eth0", NR_REG_ALL_NIC, 0, 0, 0, "");
	good("netmap:eth0-3", "eth0", NR_REG_ONE_NIC, 3, 0, 0, "");
	good("netmap:eth0*", "eth0", NR_REG_NIC_SW, 0, 0, 0, "");
	good("netmap:eth0^", "eth0", NR_REG_SW, 0, 0, 0, "");
	good("netmap:eth0^2", "eth0", NR_REG_ONE_SW, 2, 0, 0, "");
	good("netmap:eth0/xzt", "eth0", NR_REG_ALL_NIC, 0, NR_EXCLUSIVE | NR_ZCOPY_MON | NR_MONITOR_TX, 0, "");
	good("netmap:eth0-1/rR@7@conf:x", "eth0", NR_REG_ONE_NIC, 1, NR_MONITOR_RX | NR_RX_RINGS_ONLY, 7, "@conf:x");
	good("netmap:a{b", "a{b", NR_REG_ALL_NIC, 0, 0, 0, "");
	good("netmap:a}1@2/T@2", "a}1", NR_REG_ALL_NIC, 0, NR_TX_RINGS_ONLY, 2, "");
	good("vale:p", "vale:p", NR_REG_ALL_NIC, 0, 0, 0, "");
	good("vale0:p{1-2", "vale0:p{1", NR_REG_ONE_NIC, 2, 0, 0, "");
	good("netmap:/run/a-b/c", "/run/a-b/c", NR_REG_ALL_NIC, 0, 0, 0, "");
	bad("");
	bad("eth0");
	bad("netmap:");
	bad("netmap:^");
	bad("netmap:vale0:1");
	bad("netmap:a{");
	bad("netmap:a{1}2");
	bad("netmap:a-");
	bad("netmap:a-4095");
	bad("netmap:a/q");
	bad("netmap:a@");
	bad("netmap:a@2@3");
	bad("netmap:a-1*");
	bad("vale0");
	bad("netmap:a23456789012345678901234567890123456789012345678901234567890123456789");

	/* Options: '-' and '_' are the same, the first key may go without its name. */
	CHECK(nmreq_options_decode("", &parser, NULL, &mine) == 0);
	CHECK(nmreq_options_decode("@two_words:5", &parser, NULL, &mine) == 0 && seen == NULL);
	CHECK(nmreq_options_decode("@two-words:some-text=x,num=5", &parser, NULL, &mine) == 0 && strcmp(seen, "x") == 0);
	CHECK(nmreq_options_decode("@two-words:5,some_text", &parser, NULL, &mine) == 0 && strcmp(seen, "") == 0);
	CHECK(nmreq_options_decode("@two-words:6", &parser, NULL, &mine) == -2);
	CHECK(nmreq_options_decode("@two-words:some-text=x", &parser, NULL, &mine) == -1 && errno == EINVAL);
	CHECK(nmreq_options_decode("@two-words:5,other=1", &parser, NULL, &mine) == -1);
	CHECK(nmreq_options_decode("@two-words", &parser, NULL, &mine) == -1);
	CHECK(nmreq_options_decode("@unknown:5", &parser, NULL, &mine) == -1);
	CHECK(nmreq_options_decode("two-words:5", &parser, NULL, &mine) == -1);
	parser.flags = NMREQ_OPTF_DISABLED;
	CHECK(nmreq_options_decode("@two-words:5", &parser, NULL, &mine) == -1);

	/* Lists of options. */
	nmreq_header_init(&h, NETMAP_REQ_REGISTER, NULL);
	CHECK(nmreq_find_option(&h, NETMAP_REQ_OPT_CSB) == NULL);
	nmreq_push_option(&h, &a);
	nmreq_push_option(&h, &b);
	CHECK(nmreq_find_option(&h, NETMAP_REQ_OPT_CSB) == &a && nmreq_find_option(&h, NETMAP_REQ_OPT_OFFSETS) == &b);
	nmreq_remove_option(&h, &a);
	CHECK(nmreq_find_option(&h, NETMAP_REQ_OPT_CSB) == NULL && (struct nmreq_option *)(uintptr_t)h.nr_options == &b);
	CHECK(strcmp(nmreq_option_name(NETMAP_REQ_OPT_CSB), "csb") == 0);

	/* Ports that are only described. */
	d = nmport_prepare("netmap:x-1/R@conf:slots=128,tx-rings=2");
	CHECK(d != NULL && d->reg.nr_tx_slots == 128 && d->reg.nr_rx_slots == 128 && d->reg.nr_tx_rings == 2);
	CHECK(d->reg.nr_rx_rings == 0 && d->reg.nr_mode == NR_REG_ONE_NIC && d->fd == -1 && d->ctx == &mine);
	c = nmport_clone(d);
	CHECK(c != NULL && strcmp(c->hdr.nr_name, "x") == 0 && c->reg.nr_ringid == 1 && c->fd == -1);
	CHECK(nmport_offset(d, 0, 0, 0, 0) < 0 && errno == EOPNOTSUPP);
	CHECK(nmport_extmem(d, NULL, 0) < 0 && errno == EOPNOTSUPP && nmport_extmem_getinfo(d) == NULL);
	CHECK(nmport_mmap(d) < 0 && errno == EINVAL);
	nmport_undo_prepare(c);
	nmport_undo_prepare(d);
	CHECK(nmport_prepare("netmap:x@conf:slots=many") == NULL && errno == EINVAL);
	CHECK(nmport_prepare("netmap:x@extmem:file=y") == NULL && errno == EOPNOTSUPP);
	CHECK(nmport_prepare("netmap:x@offset:1") == NULL && errno == EINVAL);
	CHECK(nmport_enable_option("offset") == 0 && nmport_enable_option("none") < 0);
	CHECK(nmport_prepare("netmap:x@offset:1") == NULL && errno == EOPNOTSUPP);
	return failures != 0;
}
