/*
 * Host rings step by step. argv: port A, whose host rings are two of each direction and lead to port B; port C, which has none.
 * Rings have 8 slots, and B has one of each direction.
 */
#include "check.h"

#include <libnetmap.h>

static struct nmport_d *
open_as(const char *port, const char *suffix)
{
	char name[256];

	snprintf(name, sizeof(name), "%s%s", port, suffix);
	return nmport_open(name);
}

int
main(int argc, char **argv)
{
	struct nmport_d *nic, *host, *all, *one, *b;
	struct netmap_ring *ht, *hr, *bt, *br;

	if (argc != 4 || (b = nmport_open(argv[2])) == NULL)
		return 2;
	bt = NETMAP_TXRING(b->nifp, 0);
	br = NETMAP_RXRING(b->nifp, 0);
	CHECK(open_as(argv[3], "^") == NULL && errno == EOPNOTSUPP);
	CHECK(open_as(argv[1], "^2") == NULL && errno == EINVAL);

	/* Which rings each has: libnetmap tells by their offsets. */
	CHECK((nic = open_as(argv[1], "")) != NULL && (host = open_as(argv[1], "^")) != NULL);
	CHECK((all = open_as(argv[1], "*")) != NULL && (one = open_as(argv[1], "^1")) != NULL);
	if (failures > 0)
		return 1;
	CHECK(nic->reg.nr_tx_rings == 1 && nic->reg.nr_host_tx_rings == 2 && nic->reg.nr_host_rx_rings == 2);
	CHECK(nic->first_tx_ring == 0 && nic->last_tx_ring == 0 && nic->last_rx_ring == 0);
	CHECK(host->first_tx_ring == 1 && host->last_tx_ring == 2 && host->first_rx_ring == 1 && host->last_rx_ring == 2);
	CHECK(all->first_tx_ring == 0 && all->last_tx_ring == 2 && all->last_rx_ring == 2);
	CHECK(one->first_tx_ring == 2 && one->last_tx_ring == 2 && one->first_rx_ring == 2);
	CHECK(host->mem == nic->mem && host->reg.nr_mem_id == nic->reg.nr_mem_id);
	ht = NETMAP_TXRING(host->nifp, 1);
	hr = NETMAP_RXRING(host->nifp, 1);
	CHECK(ht->dir == 0 && hr->dir == 1 && ht->ringid == 1 && ht->num_slots == 8);
	CHECK((char *)ht == (char *)NETMAP_TXRING(all->nifp, 1));
	INDICES(ht, 0, 0, 7);
	INDICES(hr, 0, 0, 0);

	/* To the host, and nowhere else. */
	send_one(host->fd, ht, 2, 1);
	INDICES(ht, 1, 1, 0);
	await(b->fd, br, 1);
	CHECK(br->slot[0].len == 60);
	CHECK(ask(nic->fd, POLLIN, 0) == 0);
	release(b->fd, br);

	/* From the host: in one of the two host rings, by flow, and not in the port's own. */
	send_one(b->fd, bt, 1, 2);
	CHECK(ask(host->fd, POLLIN, SOON) == POLLIN);
	CHECK(ask(nic->fd, POLLIN, 0) == 0);
	CHECK(nm_ring_space(hr) + nm_ring_space(NETMAP_RXRING(host->nifp, 2)) == 1);
	if (nm_ring_empty(hr))
		hr = NETMAP_RXRING(host->nifp, 2);
	INDICES(hr, 0, 0, 1);
	CHECK(ask(all->fd, POLLIN, 0) == POLLIN);
	release(host->fd, hr);
	INDICES(hr, 1, 1, 1);

	/* One host ring. */
	send_one(one->fd, NETMAP_TXRING(one->nifp, 2), 2, 1);
	await(b->fd, br, 1);

	nmport_close(one);
	nmport_close(all);
	nmport_close(host);
	/* They are the port's: its own rings do not mind. */
	send_one(nic->fd, NETMAP_TXRING(nic->nifp, 0), 9, 1);
	nmport_close(nic);
	nmport_close(b);
	return failures != 0;
}
