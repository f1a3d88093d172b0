/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef SIDECORE_NAME_H
#define SIDECORE_NAME_H

#include <net/netmap.h>
#include <stddef.h>

/*
 * Reads a port's name as programs write it: `netmap:NAME` or `valeS:NAME`, then at most one ring choice (`-N`, `*`, `^`),
 * then `/` and flags (x, R, T, …). NULL, or why it cannot be. A NAME in the form of a path ends where the string ends.
 */
const char *nm_parse_name(const char *text, char name[NETMAP_REQ_IFNAMSIZ], struct nmreq_register *reg);

/* Puts a packet into the free slots of a ring; whether it fitted. */
int nm_put(struct netmap_ring *ring, const void *buf, size_t size);

#endif
