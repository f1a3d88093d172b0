// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What both directions have in common: where rings are, how the two sides tell each other of slots, and kicks.
 *
 * A ring is a circle of slots. Those from `head` up to `tail` are ours, the others the host's; we give by moving head,
 * the host by moving its tail. Head is stored after the slots before it were written, and the host's tail is loaded
 * before the slots that it gives are read.
 *
 * A side that sleeps is told of a move: the guest by an interrupt, the host by a kick, which is a register and leaves
 * the guest. Each side says in its block whether it wants to be told. Both do the same two steps: the one that sleeps
 * stores its wish and then loads the index once more; the other stores the index and then loads the wish. With a full
 * barrier between the steps at least one of them sees the other's store. On x86, too, a load may otherwise be done
 * before an earlier store is visible, and then the host sleeps with frames in its ring.
 */
#include "ptnet.h"

/* The host's tail: from where it was it goes forward, at most to the slot before what we have given. */
u32 pt_look(struct pt_ring *r)
{
	u32 tail = virt_load_acquire(&r->host->hwtail);

	if (tail == r->tail)
		return tail;
	if (likely(tail < r->size && pt_steps(r, r->tail, tail) <
				     (pt_steps(r, r->tail, r->published) ?: r->size))) {
		r->tail = tail;
	} else {
		pt_count(r, C_BAD_TAIL, 1);
		netdev_err_once(r->p->dev, "%s: slot %u of %u cannot be the host's tail after %u; the ring stands still\n",
				r->name, tail, r->size, r->tail);
	}
	return tail;
}

/* Gives the slots before head to the host, and kicks it if it sleeps. `cur` is the slot whose successors are waited for. */
void pt_publish(struct pt_ring *r, u32 cur, u32 flags)
{
	bool gives = r->published != r->head;

	if (!gives && READ_ONCE(r->guest->cur) == cur)
		return;
	r->published = r->head;
	/* The host reads head first, so it never sees cur behind head. */
	virt_store_release(&r->guest->cur, cur);
	virt_store_release(&r->guest->head, r->head);
	if (!gives)
		return;
	pt_count(r, C_PUBLICATIONS, 1);
	pt_kick(r, flags);
}

void pt_kick(struct pt_ring *r, u32 flags)
{
	/* See above. */
	virt_mb();
	if (!READ_ONCE(r->host->need_kick))
		return;
	WRITE_ONCE(r->guest->sync_flags, flags);
	pt_count(r, C_KICKS, 1);
	iowrite32(0, r->kick);
}

/* After CREATE: where both sides are. */
int pt_ring_begin(struct pt_ring *r)
{
	u32 tail = virt_load_acquire(&r->host->hwtail), head = READ_ONCE(r->guest->head);

	if (head >= r->size || tail >= r->size) {
		netdev_err(r->p->dev, "%s: head %u and tail %u in a ring of %u slots\n", r->name, head, tail, r->size);
		return -EIO;
	}
	r->head = r->published = head;
	r->tail = r->shown = tail;
	return 0;
}

/* `bytes` at `offset` of the memory, or NULL if they are not in it. */
static void *memory_at(const struct pt_memory *m, u64 offset, u64 bytes)
{
	if (offset > m->size || bytes > m->size - offset || offset % sizeof(u64))
		return NULL;
	return m->base + offset;
}

static int ring_map(struct ptnet *p, struct pt_ring *r, u64 offset, u32 slots)
{
	struct pt_ring_head *head = memory_at(p->memory, offset, sizeof(*head) + (u64)slots * sizeof(struct pt_slot));

	if (!head || READ_ONCE(head->num_slots) != slots)
		return -EINVAL;
	r->slots = head->slots;
	r->size = slots;
	if (r->rx)
		return 0;
	r->bytes = devm_kcalloc(&p->pdev->dev, slots, sizeof(*r->bytes), GFP_KERNEL);
	return r->bytes ? 0 : -ENOMEM;
}

/* Finds the rings in the memory. */
int pt_rings_map(struct ptnet *p)
{
	u32 rings = p->tx_rings + p->rx_rings, at = pt_get(p, R_IF_OFFSET), host_rings, i;
	u32 tx_slots = pt_get(p, R_TX_SLOTS), rx_slots = pt_get(p, R_RX_SLOTS);
	struct pt_if *nif = memory_at(p->memory, at, sizeof(*nif));

	if (!nif)
		return -EINVAL;
	host_rings = READ_ONCE(nif->host_tx_rings);
	if (host_rings > U16_MAX || !memory_at(p->memory, at, struct_size(nif, ring_ofs, rings + host_rings)))
		return -EINVAL;
	if (min(tx_slots, rx_slots) < 4 || max(tx_slots, rx_slots) > BIT(20))
		return -EINVAL;
	for (i = 0; i < rings; i++) {
		struct pt_ring *r = &p->rings[i];
		s64 offset;
		int err;

		r->p = p;
		r->rx = i >= p->tx_rings;
		r->index = r->rx ? i - p->tx_rings : i;
		snprintf(r->name, sizeof(r->name), "%s%u", r->rx ? "rx" : "tx", r->index);
		r->guest = (struct pt_guest *)p->csb + i;
		r->host = (struct pt_host *)(p->csb + PT_PAGE) + i;
		r->kick = p->regs + R_KICK(i);
		u64_stats_init(&r->sync);
		/* Rings to the host's stack stand between the two kinds. */
		offset = READ_ONCE(nif->ring_ofs[r->rx ? i + host_rings : i]);
		err = ring_map(p, r, (u64)at + offset, r->rx ? rx_slots : tx_slots);
		if (err)
			return err;
	}
	return 0;
}
