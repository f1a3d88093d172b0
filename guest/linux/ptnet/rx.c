// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Frames in: copied out of the slots into memory of the stack's, so that the slots are the host's again at once.
 *
 * While a ring is polled it wants no interrupts. The poll that has seen everything wishes for one, and then looks once
 * more (ring.c).
 */
#include <linux/etherdevice.h>

#include "ptnet.h"

/* Frames up to this are one stretch of memory; of longer ones only the headers are. */
#define RX_LINEAR 2048u
#define RX_HEADERS 256u

/* The slots of a frame, read once. */
struct chain {
	u32 slots;
	u32 len;
	bool good;
	u64 words[PT_FRAGS];
};

/* What came while the ring was off is of no use any more. */
void pt_rx_begin(struct pt_ring *r)
{
	r->head = r->tail;
	pt_publish(r, r->head, SYNC_READ);
}

/* Reads the slots of the frame at head; false if its end has not come yet. */
static bool rx_chain(struct pt_ring *r, struct chain *chain)
{
	const struct pt_memory *m = r->p->memory;
	u32 at = r->head;
	u64 word;

	chain->slots = 0;
	chain->len = 0;
	chain->good = true;
	do {
		/* A frame without an end that fills the ring would stay there for good. */
		if (at == r->tail && chain->slots + 1 < r->size)
			return false;
		if (at == r->tail) {
			chain->good = false;
			break;
		}
		word = READ_ONCE(r->slots[at].word);
		if (chain->slots < PT_FRAGS)
			chain->words[chain->slots] = word;
		else
			chain->good = false;
		chain->good &= pt_buf(m, word) && pt_len(word) <= m->buf_size;
		chain->slots++;
		chain->len += pt_len(word);
		at = pt_next(r, at);
	} while (word & SLOT_MORE);
	if (!chain->good)
		pt_count(r, C_BAD_SLOT, 1);
	return true;
}

static struct sk_buff *rx_alloc(struct pt_ring *r, u32 len)
{
	struct sk_buff *skb;
	int err;

	if (len <= RX_LINEAR) {
		skb = napi_alloc_skb(&r->napi, len);
		if (skb)
			skb_put(skb, len);
		return skb;
	}
	skb = alloc_skb_with_frags(NET_SKB_PAD + NET_IP_ALIGN + RX_HEADERS, len - RX_HEADERS, PAGE_ALLOC_COSTLY_ORDER,
				   &err, GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return NULL;
	skb_reserve(skb, NET_SKB_PAD + NET_IP_ALIGN);
	skb_put(skb, RX_HEADERS);
	skb->data_len = len - RX_HEADERS;
	skb->len = len;
	skb->dev = r->p->dev;
	return skb;
}

/* The frame of these slots, or NULL if it is counted as lost. */
static struct sk_buff *rx_frame(struct pt_ring *r, const struct chain *chain)
{
	const struct ptnet *p = r->p;
	struct virtio_net_hdr_v1 header;
	u32 before = p->header, i;
	struct pt_writer to;
	struct sk_buff *skb;

	if (chain->len < before + ETH_HLEN || pt_len(chain->words[0]) < before) {
		pt_count(r, C_BAD_HEADER, 1);
		return NULL;
	}
	if (chain->len > before + PT_LONGEST) {
		pt_count(r, C_TOO_LONG, 1);
		return NULL;
	}
	skb = rx_alloc(r, chain->len - before);
	if (!skb) {
		pt_count(r, C_NO_MEMORY, 1);
		return NULL;
	}
	if (before)
		memcpy(&header, pt_buf(p->memory, chain->words[0]), sizeof(header));
	pt_write_begin(&to, skb);
	for (i = 0; i < chain->slots; i++) {
		/* This cannot fail: the lengths were added up to make the frame. */
		pt_write(&to, pt_buf(p->memory, chain->words[i]) + before, pt_len(chain->words[i]) - before);
		before = 0;
	}
	if (p->header) {
		if (virtio_net_hdr_to_skb(skb, (struct virtio_net_hdr *)&header, true)) {
			pt_count(r, C_BAD_HEADER, 1);
			kfree_skb(skb);
			return NULL;
		}
		if (header.flags & VIRTIO_NET_HDR_F_DATA_VALID)
			skb->ip_summed = CHECKSUM_UNNECESSARY;
	}
	skb_record_rx_queue(skb, r->index);
	skb->protocol = eth_type_trans(skb, p->dev);
	return skb;
}

static int rx_frames(struct pt_ring *r, int budget)
{
	unsigned long frames = 0, bytes = 0;
	struct chain chain;
	int done;

	for (done = 0; done < budget && r->head != r->tail && rx_chain(r, &chain); done++) {
		struct sk_buff *skb = chain.good && chain.len ? rx_frame(r, &chain) : NULL;

		r->head = (r->head + chain.slots) % r->size;
		if (skb) {
			frames++;
			bytes += skb->len + ETH_HLEN;
			napi_gro_receive(&r->napi, skb);
		}
		/* Slots of a long batch do not wait for its end. */
		if (pt_steps(r, r->published, r->head) >= r->size / 4)
			pt_publish(r, r->head, SYNC_READ);
	}
	u64_stats_update_begin(&r->sync);
	u64_stats_add(&r->counters[C_POLLS], 1);
	u64_stats_add(&r->counters[C_FRAMES], frames);
	u64_stats_add(&r->counters[C_BYTES], bytes);
	u64_stats_update_end(&r->sync);
	return done;
}

int pt_rx_poll(struct napi_struct *napi, int budget)
{
	struct pt_ring *r = container_of(napi, struct pt_ring, napi);
	u32 seen;
	int done;

	/* netpoll, which wants only what was sent; no poll would ask for interrupts again. */
	if (!budget)
		return 0;
	WRITE_ONCE(r->guest->need_kick, 0);
	seen = pt_look(r);
	done = rx_frames(r, budget);
	pt_publish(r, r->head, SYNC_READ);
	if (done == budget || !napi_complete_done(napi, done))
		return done;
	WRITE_ONCE(r->guest->need_kick, 1);
	virt_mb();
	if (READ_ONCE(r->host->hwtail) != seen && napi_schedule_prep(napi)) {
		WRITE_ONCE(r->guest->need_kick, 0);
		__napi_schedule(napi);
	}
	return done;
}

/* The host says whether there is a link; without that word there is one. */
void pt_link(struct ptnet *p)
{
	bool up = !(p->features & F_LINK) || READ_ONCE(p->rings[p->tx_rings].host->link);

	if (up == netif_carrier_ok(p->dev))
		return;
	if (up)
		netif_carrier_on(p->dev);
	else
		netif_carrier_off(p->dev);
}
