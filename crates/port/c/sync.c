/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * txsync and rxsync: what netmap's kernel does with a program's head and cur, at the same moments and by the same
 * rules. A ring whose indices make no sense is put back to what the last sync left (netmap: ring re-initialisation);
 * unlike netmap nothing of the nonsense is adopted.
 */
#include "nm.h"

#include <net/netmap_user.h>
#include <string.h>

/* Slots from `from` on to `to`. */
static uint32_t
distance(uint32_t from, uint32_t to, uint32_t n)
{
	return to >= from ? to - from : to + n - from;
}

static int
within(uint32_t index, uint32_t from, uint32_t to, uint32_t n)
{
	return index < n && distance(from, index, n) <= distance(from, to, n);
}

/*
 * Whether the memory was taken away with its port. It reads as zeros then. A program in the middle of a batch takes them for
 * the place of its buffer, and writes its frame over the ring: so nothing in the ring says how long it is, and none of its
 * slots counts.
 */
static int
taken(const struct nm_kring *k)
{
	return unlikely(*(const volatile uint32_t *)k->version == 0)
	    || unlikely(*(const volatile uint32_t *)&k->ring->num_slots != k->link->num_slots);
}

static void
settle(struct nm_kring *k, uint32_t head, uint32_t cur, uint32_t tail)
{
	struct netmap_ring *ring = k->ring;

	/* Nothing has come, and nothing is free. */
	if (taken(k))
		cur = tail = head;
	k->rhead = ring->head = head;
	k->rcur = ring->cur = cur;
	k->rtail = ring->tail = tail;
}

/* Puts slots and indices right. */
static int
reinit(struct nm_port *port, struct nm_kring *k, uint32_t head)
{
	struct netmap_ring *ring = k->ring;
	uint32_t n = taken(k) ? 0 : k->link->num_slots, i;

	for (i = 0; i < n; i++) {
		struct netmap_slot *slot = &ring->slot[i];

		if (slot->buf_idx < 2 || slot->buf_idx >= port->ring.info.bufs) {
			slot->buf_idx = 0;
			slot->len = 0;
		} else if (slot->len > ring->nr_buf_size) {
			slot->len = 0;
		}
	}
	settle(k, head, head, ring_hwtail(k->link));
	return -1;
}

/* Another process, to which the descriptor was passed, may have synced the ring meanwhile. */
static void
catch_up(struct nm_kring *k)
{
	if (unlikely(ring_moved(k->link))) {
		k->rhead = ring_start(k->link);
		k->rtail = ring_hwtail(k->link);
	}
}

/* A slot whose bytes are elsewhere in the program: the engine cannot see them there. */
static void
fetch_indirect(struct netmap_ring *ring, struct netmap_slot *slot)
{
	if (slot->len <= ring->nr_buf_size && slot->ptr != 0)
		memcpy(NETMAP_BUF(ring, slot->buf_idx), (const void *)(uintptr_t)slot->ptr, slot->len);
	else
		slot->len = 0;
	slot->flags &= (uint16_t)~NS_INDIRECT;
}

static int
txsync(struct nm_port *port, struct nm_kring *k)
{
	struct netmap_ring *ring = k->ring;
	uint32_t n = k->link->num_slots, i;
	/* Once: another thread may be at work on the ring. */
	uint32_t head = *(volatile uint32_t *)&ring->head;
	uint32_t cur = *(volatile uint32_t *)&ring->cur;

	if (taken(k)) {
		settle(k, k->rhead, k->rhead, k->rhead);
		return 0;
	}
	catch_up(k);
	if (!within(head, k->rhead, k->rtail, n) || !within(cur, head, k->rtail, n))
		return reinit(port, k, k->rhead);
	for (i = k->rhead; i != head; i = i + 1 == n ? 0 : i + 1) {
		struct netmap_slot *slot = &ring->slot[i];

		if (unlikely(slot->flags & NS_INDIRECT) && slot->buf_idx >= 2 && slot->buf_idx < port->ring.info.bufs)
			fetch_indirect(ring, slot);
	}
	ring_give(k->link, head, cur);
	if (unlikely(ring_was_reset(k->link))) {
		head = ring_hwcur(k->link);
		ring_give(k->link, head, head);
		return reinit(port, k, head);
	}
	settle(k, head, cur, ring_hwtail(k->link));
	return 0;
}

static int
rxsync(struct nm_kring *k)
{
	struct netmap_ring *ring = k->ring;
	uint32_t n = k->link->num_slots;
	uint32_t head = *(volatile uint32_t *)&ring->head;
	uint32_t cur = *(volatile uint32_t *)&ring->cur;
	int result = 0;

	catch_up(k);
	if (!within(head, k->rhead, k->rtail, n) || !within(cur, head, k->rtail, n)) {
		head = cur = k->rhead;
		result = -1;
	}
	if (head != k->rhead)
		ring_give(k->link, head, cur);
	if (unlikely(ring_was_reset(k->link))) {
		head = cur = ring_hwcur(k->link);
		ring_give(k->link, head, cur);
		result = -1;
	}
	settle(k, head, cur, ring_hwtail(k->link));
	/* As netmap does unless it is told not to; a look that finds nothing costs no clock. */
	if (ring->head != ring->tail || (ring->flags & NR_TIMESTAMP))
		gettimeofday(&ring->ts, NULL);
	return result;
}

int
nm_txsync(struct nm_port *port, struct nm_kring *k)
{
	int result = 0;

	if (!atomic_flag_test_and_set_explicit(&k->busy, memory_order_acquire)) {
		result = txsync(port, k);
		atomic_flag_clear_explicit(&k->busy, memory_order_release);
	}
	return result;
}

int
nm_rxsync(struct nm_kring *k)
{
	int result = 0;

	if (!atomic_flag_test_and_set_explicit(&k->busy, memory_order_acquire)) {
		result = rxsync(k);
		atomic_flag_clear_explicit(&k->busy, memory_order_release);
	}
	return result;
}
