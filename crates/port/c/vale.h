/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Requests beyond one port: the messages of `sidecore_abi::vale`, which explains them. */
#ifndef SIDECORE_VALE_H
#define SIDECORE_VALE_H

#include <net/netmap.h>
#include <stdint.h>

#define VALE_MAGIC 0x656c6176u /* "vale" */
#define VALE_VERSION 1

enum {
	VALE_OPEN = 1,
	VALE_LIST,
	VALE_NEWIF,
	VALE_DELIF,
	VALE_ATTACH,
	VALE_DETACH,
	VALE_POLLING_ON,
	VALE_POLLING_OFF
};

struct vale_ask {
	uint32_t magic, version, verb, pad;
	char name[NETMAP_REQ_IFNAMSIZ];
	uint32_t tx_slots, rx_slots, tx_rings, rx_rings, first, second, mode;
	uint8_t zero[20];
};

struct vale_reply {
	uint32_t magic, version, error, sw, port, pad;
	char name[NETMAP_REQ_IFNAMSIZ];
	char text[424];
};

_Static_assert(sizeof(struct vale_ask) == 128, "ask");
_Static_assert(sizeof(struct vale_reply) == 512, "reply");

/* Asks; `ask` needs verb and arguments only. With `lease`, the connection stays open and its descriptor is put
 * there. 0, or -1 and errno. */
int vale_ask(const char *name, struct vale_ask *ask, struct vale_reply *reply, int *lease);

#endif
