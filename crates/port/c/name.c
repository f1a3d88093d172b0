/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "name.h"

#include <stdlib.h>
#include <string.h>

static const char *
parse_flags(const char *p, struct nmreq_register *reg)
{
	for (; *p != '\0' && *p != '@'; p++) {
		switch (*p) {
		case 'x':
			reg->nr_flags |= NR_EXCLUSIVE;
			break;
		case 'R':
			reg->nr_flags |= NR_RX_RINGS_ONLY;
			break;
		case 'T':
			reg->nr_flags |= NR_TX_RINGS_ONLY;
			break;
		case 't':
		case 'r':
		case 'z':
			return "monitors are not here yet";
		default:
			return "after '/' only the flags x, R, T are known";
		}
	}
	return *p == '\0' ? NULL : "memory options ('@') do not apply: a ring port's memory is the daemon's configuration";
}

const char *
nm_parse_name(const char *text, char name[NETMAP_REQ_IFNAMSIZ], struct nmreq_register *reg)
{
	const char *start = text, *end, *p;
	char *rest;
	unsigned long ring;
	size_t len;

	memset(reg, 0, sizeof(*reg));
	reg->nr_mode = NR_REG_ALL_NIC;
	if (strncmp(text, "netmap:", 7) == 0)
		start = text + 7;
	else if (strncmp(text, NM_BDG_NAME, 4) != 0)
		return "a port's name starts with netmap: or vale";
	/* A pipe's suffix is part of the name; the name of a pipe is letters, digits and '_'. */
	len = *start == '/' ? strlen(start) : strcspn(start, "-*^/@");
	if (len == 0 || len >= NETMAP_REQ_IFNAMSIZ)
		return "the name is empty or longer than 63 bytes";
	memcpy(name, start, len);
	memset(name + len, 0, NETMAP_REQ_IFNAMSIZ - len);
	p = end = start + len;
	switch (*end) {
	case '-':
		ring = strtoul(end + 1, &rest, 10);
		if (rest == end + 1 || ring > 4094)
			return "after '-' the number of a ring is needed, 0 to 4094";
		reg->nr_mode = NR_REG_ONE_NIC;
		reg->nr_ringid = (uint16_t)ring;
		p = rest;
		break;
	case '*':
	case '^':
		return "host rings are not here yet";
	default:
		break;
	}
	if (*p == '/')
		return parse_flags(p + 1, reg);
	if (*p == '@')
		return parse_flags(p, reg);
	return *p == '\0' ? NULL : "what follows the name makes no sense";
}
