/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Requests and the names that programs write: `netmap:PORT` or `valeS:PORT`, then at most one choice of rings (`-N`, `*`,
 * `^`, `^N`), `/` and flags, `@` and a memory's number, then options `@prefix:key=value,…`. What does not parse
 * changes nothing of what the caller gave.
 */
#include <libnetmap.h>

static int
refuse(struct nmctx *ctx, const char *text, const char *why)
{
	errno = EINVAL;
	nmctx_ferror(ctx, "\"%s\": %s", text, why);
	return -1;
}

void
nmreq_header_init(struct nmreq_header *hdr, uint16_t reqtype, void *body)
{
	memset(hdr, 0, sizeof(*hdr));
	hdr->nr_version = NETMAP_API;
	hdr->nr_reqtype = reqtype;
	hdr->nr_body = (uintptr_t)body;
}

/* Bytes of an identifier. */
static size_t
identifier(const char *p)
{
	size_t n = 0;

	while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '.')
		n++;
	return n;
}

int
nmreq_header_decode(const char **ppspec, struct nmreq_header *hdr, struct nmctx *ctx)
{
	const char *start = *ppspec, *p;
	size_t n;

	if (strncmp(start, "netmap:", 7) == 0) {
		start += 7;
		/* A path is the name of the port whose socket is there, and ends where the string ends. */
		n = *start == '/' ? strlen(start) : identifier(start);
		p = start + n;
	} else if (strncmp(start, NM_BDG_NAME, 4) == 0) {
		p = start + 4 + identifier(start + 4);
		if (*p != ':')
			return refuse(ctx, *ppspec, "a port of VALE's is named valeS:P");
		n = identifier(p + 1);
		p += 1 + n;
	} else {
		return refuse(ctx, *ppspec, "a port's name starts with netmap: or vale");
	}
	if (n == 0)
		return refuse(ctx, *ppspec, "it names no port");
	if (*p == '{' || *p == '}') {
		n = identifier(p + 1);
		if (n == 0)
			return refuse(ctx, *ppspec, "behind '{' or '}' the name of a pipe is needed");
		p += 1 + n;
	}
	if (*p != '\0' && strchr("-*^/@", *p) == NULL)
		return refuse(ctx, *ppspec, "a name is letters, digits, '_' and '.'");
	n = (size_t)(p - start);
	if (n >= sizeof(hdr->nr_name))
		return refuse(ctx, *ppspec, "the name is longer than 63 bytes");
	memset(hdr->nr_name, 0, sizeof(hdr->nr_name));
	memcpy(hdr->nr_name, start, n);
	*ppspec = p;
	return 0;
}

/* The number at `*p`, which moves behind it; -1 if there is none, or it is above `max`. */
static long
number(const char **p, long max)
{
	char *end;
	long value;

	if (!isdigit((unsigned char)**p))
		return -1;
	value = strtol(*p, &end, 10);
	*p = end;
	return value <= max ? value : -1;
}

static int
flag(char letter, uint64_t *flags)
{
	static const struct {
		char letter;
		uint64_t flag;
	} known[] = {
		{ 'x', NR_EXCLUSIVE }, { 'z', NR_ZCOPY_MON }, { 't', NR_MONITOR_TX }, { 'r', NR_MONITOR_RX },
		{ 'R', NR_RX_RINGS_ONLY }, { 'T', NR_TX_RINGS_ONLY }
	};
	size_t i;

	for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (known[i].letter == letter) {
			*flags |= known[i].flag;
			return 0;
		}
	}
	return -1;
}

int
nmreq_register_decode(const char **pmode, struct nmreq_register *reg, struct nmctx *ctx)
{
	const char *p = *pmode;
	uint32_t mode = NR_REG_ALL_NIC;
	long ring = 0, memory = 0, value;
	uint64_t flags = 0;

	if (*p == '*') {
		mode = NR_REG_NIC_SW;
		p++;
	} else if (*p == '-' || *p == '^') {
		mode = *p == '-' ? NR_REG_ONE_NIC : NR_REG_SW;
		p++;
		if (mode == NR_REG_ONE_NIC || isdigit((unsigned char)*p)) {
			ring = number(&p, NETMAP_RING_MASK - 1);
			if (ring < 0)
				return refuse(ctx, *pmode, "behind '-' or '^' the number of a ring is needed, 0 to 4094");
			mode = mode == NR_REG_ONE_NIC ? NR_REG_ONE_NIC : NR_REG_ONE_SW;
		}
	}
	while (*p != '\0') {
		if (*p == '/') {
			for (p++; *p != '\0' && *p != '@' && *p != '/'; p++) {
				if (flag(*p, &flags) < 0)
					return refuse(ctx, *pmode, "behind '/' the flags are x, z, t, r, R and T");
			}
		} else if (*p == '@' && isdigit((unsigned char)p[1])) {
			p++;
			value = number(&p, UINT16_MAX);
			if (value <= 0 || (memory != 0 && memory != value))
				return refuse(ctx, *pmode, "'@' names an impossible memory, or two");
			memory = value;
		} else if (*p == '@' && p[1] != '\0') {
			break; /* options, which are the caller's */
		} else {
			return refuse(ctx, *pmode, "what follows the name makes no sense");
		}
	}
	reg->nr_mode = mode;
	reg->nr_ringid = (uint16_t)ring;
	reg->nr_mem_id = (uint16_t)memory;
	reg->nr_flags = flags;
	*pmode = p;
	return 0;
}

/* Whether `text` is `name`, '-' and '_' being the same. */
static int
same(const char *text, const char *name)
{
	for (; *text != '\0' && *name != '\0'; text++, name++) {
		char a = *text == '-' ? '_' : *text, b = *name == '-' ? '_' : *name;

		if (a != b)
			return 0;
	}
	return *text == *name;
}

/* Puts the value of one "key=value" where the parser wants it. */
static int
take_key(struct nmreq_opt_parser *parser, char *word, struct nmreq_parse_ctx *parsed)
{
	char *value = strchr(word, '=');
	int i;

	if (value != NULL)
		*value++ = '\0';
	for (i = 0; i < parser->nr_keys; i++) {
		struct nmreq_opt_key *key = &parser->keys[i];

		if (!same(word, key->key))
			continue;
		if (value == NULL && !(key->flags & NMREQ_OPTK_ALLOWEMPTY))
			return -1;
		parsed->keys[key->id] = value != NULL ? value : word + strlen(word);
		return 0;
	}
	/* A value without a key is the default one's. */
	if (value == NULL && parser->default_key >= 0) {
		parsed->keys[parser->keys[parser->default_key].id] = word;
		return 0;
	}
	return -1;
}

static int
take_option(char *option, struct nmreq_opt_parser *parsers, void *token, struct nmctx *ctx)
{
	struct nmreq_parse_ctx parsed = { .ctx = ctx, .token = token };
	char *args = strchr(option, ':'), *word, *next;
	struct nmreq_opt_parser *parser;
	int i;

	if (args != NULL)
		*args++ = '\0';
	for (parser = parsers; parser != NULL && !same(option, parser->prefix); parser = parser->next)
		;
	if (parser == NULL || (parser->flags & NMREQ_OPTF_DISABLED))
		return refuse(ctx, option, parser == NULL ? "there is no such option" : "this option is not enabled");
	if (args == NULL && !(parser->flags & NMREQ_OPTF_ALLOWEMPTY))
		return refuse(ctx, option, "this option needs ':' and values");
	for (word = args; word != NULL && *word != '\0'; word = next) {
		next = strchr(word, ',');
		if (next != NULL)
			*next++ = '\0';
		if (take_key(parser, word, &parsed) < 0)
			return refuse(ctx, word, "there is no such key, or it has no value");
	}
	for (i = 0; i < parser->nr_keys; i++) {
		if ((parser->keys[i].flags & NMREQ_OPTK_MUSTSET) && parsed.keys[parser->keys[i].id] == NULL)
			return refuse(ctx, parser->keys[i].key, "this key is needed");
	}
	return parser->parse(&parsed);
}

int
nmreq_options_decode(const char *opt, struct nmreq_opt_parser *parsers, void *token, struct nmctx *ctx)
{
	char *copy, *option, *next;
	int result = 0;

	if (*opt == '\0')
		return 0;
	if (*opt != '@')
		return refuse(ctx, opt, "options start with '@'");
	copy = strdup(opt + 1);
	if (copy == NULL)
		return -1;
	for (option = copy; result == 0 && option != NULL; option = next) {
		next = strchr(option, '@');
		if (next != NULL)
			*next++ = '\0';
		result = take_option(option, parsers, token, ctx);
	}
	free(copy);
	return result;
}

int32_t
nmreq_get_mem_id(const char **portname, struct nmctx *ctx)
{
	struct nmreq_port_info_get info = { 0 };
	struct nmreq_header hdr;
	int fd, saved;

	nmreq_header_init(&hdr, NETMAP_REQ_PORT_INFO_GET, &info);
	if (nmreq_header_decode(portname, &hdr, ctx) < 0)
		return -1;
	fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (fd < 0 || ioctl(fd, NIOCCTRL, &hdr) < 0) {
		saved = errno;
		nmctx_ferror(ctx, "port \"%s\": %s", hdr.nr_name, strerror(errno));
		if (fd >= 0)
			close(fd);
		errno = saved;
		return -1;
	}
	close(fd);
	return info.nr_mem_id;
}

void
nmreq_push_option(struct nmreq_header *hdr, struct nmreq_option *opt)
{
	opt->nro_next = hdr->nr_options;
	hdr->nr_options = (uintptr_t)opt;
}

void
nmreq_remove_option(struct nmreq_header *hdr, struct nmreq_option *opt)
{
	uint64_t *place = &hdr->nr_options;

	while (*place != 0) {
		struct nmreq_option *at = (struct nmreq_option *)(uintptr_t)*place;

		if (at == opt) {
			*place = opt->nro_next;
			opt->nro_next = 0;
			return;
		}
		place = &at->nro_next;
	}
}

struct nmreq_option *
nmreq_find_option(struct nmreq_header *hdr, uint32_t type)
{
	struct nmreq_option *opt;

	nmreq_foreach_option(hdr, opt) {
		if (opt->nro_reqtype == type)
			break;
	}
	return opt;
}

void
nmreq_free_options(struct nmreq_header *hdr)
{
	struct nmreq_option *opt = (struct nmreq_option *)(uintptr_t)hdr->nr_options, *next;

	for (; opt != NULL; opt = next) {
		next = (struct nmreq_option *)(uintptr_t)opt->nro_next;
		free(opt);
	}
	hdr->nr_options = 0;
}

const char *
nmreq_option_name(uint32_t type)
{
	static const char *const names[] = { "none", "extmem", "sync-kloop-eventfds", "csb", "sync-kloop-mode", "offsets" };

	return type < sizeof(names) / sizeof(names[0]) ? names[type] : "unknown";
}
