/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The protocol of a ring's words: what crates/port/src/{link,pipe}.rs do, in C. */
#include "ring.h"

#include <string.h>
#include <unistd.h>

static const uint64_t one = 1;

/* Hands the slots of a pipe's ring before `head` over, of those sent only whole packets: crates/port/src/pipe.rs, which
 * explains it, in C. */
static void
pipe_give(struct ring_link *link, uint32_t head)
{
	struct netmap_slot *mine = link->ring->slot, *theirs = link->far_ring->slot;
	uint32_t at, ticket, to = link->sends ? link->given : head;

	for (at = link->given; at != head;) {
		uint32_t next = at + 1 == link->num_slots ? 0 : at + 1;

		if (link->sends) {
			/* Compared first: packets that go round in the same buffers write nothing. */
			if (memcmp(&theirs[at], &mine[at], sizeof(*mine)) != 0)
				theirs[at] = mine[at];
			if (!(mine[at].flags & NS_MOREFRAG))
				to = next;
		} else if (mine[at].flags & NS_BUF_CHANGED) {
			theirs[at] = mine[at];
			mine[at].flags &= (uint16_t)~NS_BUF_CHANGED;
		}
		at = next;
	}
	link->given = to;
	atomic_store_explicit(&link->words->client.cur, to, memory_order_relaxed);
	atomic_store_explicit(&link->words->client.head, to, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	ticket = atomic_load_explicit(&link->far->client.ticket, memory_order_relaxed);
	if (ticket != 0 && ticket != link->answered) {
		link->answered = ticket;
		if (write(link->far_wake, &one, sizeof(one)) < 0)
			return;
	}
}

/* Slots from `from` on to `to`. */
static uint32_t
distance(const struct ring_link *link, uint32_t from, uint32_t to)
{
	return to >= from ? to - from : to + link->num_slots - from;
}

/* While a monitor reads a ring of the pipe, the daemon says in its words how far it is: a sender has no slot beyond that. */
static uint32_t
behind_monitor(const struct ring_link *link, struct ring_words *words, uint32_t there)
{
	uint32_t at;

	if (atomic_load_explicit(&words->engine.ticket, memory_order_acquire) == 0)
		return there;
	at = atomic_load_explicit(&words->engine.hwcur, memory_order_acquire);
	if (at >= link->num_slots || distance(link, at, link->given) <= distance(link, there, link->given))
		return there;
	return at;
}

/* Where the ring across is, or where we are if that makes no sense. */
static uint32_t
pipe_there(struct ring_link *link)
{
	uint32_t head = atomic_load_explicit(&link->far->client.head, memory_order_acquire);

	if (head >= link->num_slots)
		head = link->given;
	if (!link->sends)
		return head;
	return behind_monitor(link, link->far, behind_monitor(link, link->words, head));
}

/* Where a client of the ring starts: 0, unless it had a client before. */
uint32_t
ring_start(struct ring_link *link)
{
	return link->given;
}

int
ring_moved(struct ring_link *link)
{
	uint32_t head = atomic_load_explicit(&link->words->client.head, memory_order_acquire);

	if (head == link->given || head >= link->num_slots)
		return 0;
	link->given = head;
	return 1;
}

/* Gives all slots before `head` to the engine, and kicks it if it sleeps and has not been kicked for that. */
void
ring_give(struct ring_link *link, uint32_t head, uint32_t cur)
{
	uint32_t ticket;

	if (link->far != NULL) {
		pipe_give(link, head);
		return;
	}
	link->given = head;
	atomic_store_explicit(&link->words->client.cur, cur, memory_order_relaxed);
	atomic_store_explicit(&link->words->client.head, head, memory_order_release);
	if (link->kick < 0)
		return;
	/* Between our index and their ticket: one of us sees what the other did. */
	atomic_thread_fence(memory_order_seq_cst);
	ticket = atomic_load_explicit(&link->words->engine.ticket, memory_order_relaxed);
	if (ticket != 0 && ticket != link->answered) {
		link->answered = ticket;
		/* Fails only when the counter is full, and then the engine has been kicked. */
		if (write(link->kick, &one, sizeof(one)) < 0)
			return;
	}
}

static uint32_t
index_of(struct ring_link *link, _Atomic uint32_t *word)
{
	uint32_t value = atomic_load_explicit(word, memory_order_acquire);

	return value < link->num_slots ? value : link->num_slots - 1;
}

uint32_t
ring_hwcur(struct ring_link *link)
{
	if (link->far != NULL)
		return link->sends ? pipe_there(link) : link->given;
	return index_of(link, &link->words->engine.hwcur);
}

uint32_t
ring_hwtail(struct ring_link *link)
{
	if (link->far != NULL) {
		uint32_t there = pipe_there(link);

		return !link->sends ? there : there == 0 ? link->num_slots - 1 : there - 1;
	}
	return index_of(link, &link->words->engine.hwtail);
}

/* Whether the engine has reset the ring since this was asked last, by any process that shares the descriptor. */
int
ring_was_reset(struct ring_link *link)
{
	uint32_t resets = atomic_load_explicit(&link->words->engine.resets, memory_order_acquire);

	if (resets == atomic_load_explicit(&link->words->client.seen, memory_order_relaxed))
		return 0;
	atomic_store_explicit(&link->words->client.seen, resets, memory_order_relaxed);
	return 1;
}

/* Asks to be woken when hwtail moves; hwtail as it is after that. */
uint32_t
ring_arm(struct ring_link *link)
{
	/* Each a new one, also of processes that share the descriptor. */
	link->ticket = atomic_fetch_add_explicit(&link->words->client.tickets, 1, memory_order_relaxed) + 1;
	if (link->ticket == 0)
		link->ticket = 1;
	atomic_store_explicit(&link->words->client.ticket, link->ticket, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	return ring_hwtail(link);
}

/* Asks no more, and empties the pipe. */
void
ring_disarm(struct ring_link *link)
{
	char bytes[64];

	atomic_store_explicit(&link->words->client.ticket, 0, memory_order_relaxed);
	while (read(link->wake, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes))
		;
}
