// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Frames out.
 *
 * A frame is copied into the buffers of as many slots as it needs, behind its virtio-net header, and is the stack's no
 * longer: nothing has to be given back, and no interrupt is needed for that. What the stack sends as a train becomes
 * visible to the host with its last frame, with one store and at most one kick.
 *
 * Interrupts are wanted only while a queue stands still, because its ring is full or because byte queue limits (BQL)
 * hold it. Those count as sent what the host has taken, which is looked up at each publication.
 */
#include <linux/etherdevice.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "ptnet.h"

static struct netdev_queue *tx_queue(const struct pt_ring *r)
{
	return netdev_get_tx_queue(r->p->dev, r->index);
}

void pt_tx_begin(struct pt_ring *r)
{
	memset(r->bytes, 0, r->size * sizeof(*r->bytes));
	r->clean = pt_next(r, r->tail);
	netdev_tx_reset_queue(tx_queue(r));
}

/* Counts what the host has taken; a stopped queue goes on if that made room. The caller holds the queue's lock. */
static void tx_clean(struct pt_ring *r)
{
	struct netdev_queue *queue = tx_queue(r);
	u32 end, bytes = 0, frames = 0;

	pt_look(r);
	end = pt_next(r, r->tail);
	for (; r->clean != end; r->clean = pt_next(r, r->clean)) {
		frames += !!r->bytes[r->clean];
		bytes += r->bytes[r->clean];
		r->bytes[r->clean] = 0;
	}
	if (r->p->bql && frames)
		netdev_tx_completed_queue(queue, frames, bytes);
	if (netif_tx_queue_stopped(queue) && pt_ours(r) >= r->p->wake)
		netif_tx_wake_queue(queue);
}

/* A queue that stands still wants an interrupt, unless it can go on after all. See ring.c for the barrier. */
static void tx_ask(struct pt_ring *r)
{
	WRITE_ONCE(r->guest->need_kick, 1);
	virt_mb();
	tx_clean(r);
	if (!netif_xmit_stopped(tx_queue(r)))
		WRITE_ONCE(r->guest->need_kick, 0);
}

int pt_tx_poll(struct napi_struct *napi, int budget)
{
	struct pt_ring *r = container_of(napi, struct pt_ring, napi);
	struct netdev_queue *queue = tx_queue(r);

	__netif_tx_lock(queue, smp_processor_id());
	pt_count(r, C_POLLS, 1);
	WRITE_ONCE(r->guest->need_kick, 0);
	tx_clean(r);
	if (netif_xmit_stopped(queue))
		tx_ask(r);
	__netif_tx_unlock(queue);
	/* An interrupt since tx_ask() has this poll run again. */
	napi_complete(napi);
	return 0;
}

/* Virtio 1.2, 5.1.6.2; false for a kind of segmentation that was not offered. */
static bool tx_header(const struct sk_buff *skb, struct virtio_net_hdr_v1 *header)
{
	const struct skb_shared_info *info = skb_shinfo(skb);

	memset(header, 0, sizeof(*header));
	if (skb->ip_summed == CHECKSUM_PARTIAL) {
		header->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
		header->csum_start = __cpu_to_virtio16(true, skb_checksum_start_offset(skb));
		header->csum_offset = __cpu_to_virtio16(true, skb->csum_offset);
	}
	if (!skb_is_gso(skb))
		return true;
	if (info->gso_type & SKB_GSO_TCPV4)
		header->gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
	else if (info->gso_type & SKB_GSO_TCPV6)
		header->gso_type = VIRTIO_NET_HDR_GSO_TCPV6;
	else if (info->gso_type & SKB_GSO_UDP_L4)
		header->gso_type = PT_GSO_UDP_L4;
	else
		return false;
	if (info->gso_type & SKB_GSO_TCP_ECN)
		header->gso_type |= VIRTIO_NET_HDR_GSO_ECN;
	header->gso_size = __cpu_to_virtio16(true, info->gso_size);
	header->hdr_len = __cpu_to_virtio16(true, skb_transport_offset(skb) +
		(info->gso_type & SKB_GSO_UDP_L4 ? sizeof(struct udphdr) : tcp_hdrlen(skb)));
	return true;
}

/* Copies a frame into the slots from head, which are enough for it. False: it cannot be sent. */
static bool tx_put(struct pt_ring *r, struct sk_buff *skb)
{
	const struct pt_memory *m = r->p->memory;
	u32 at = r->head, last = at, done = 0, before = r->p->header;
	struct virtio_net_hdr_v1 header;
	struct pt_reader from;

	if (before && !tx_header(skb, &header)) {
		pt_count(r, C_BAD_HEADER, 1);
		return false;
	}
	pt_read_begin(&from, skb);
	do {
		/* The buffer that the slot has now: programs and hosts exchange buffers. */
		u64 buf = READ_ONCE(r->slots[at].word) & SLOT_BUF;
		u32 part = min(skb->len - done, m->buf_size - before);
		u8 *to = pt_buf(m, buf);

		if (!to || !pt_read(&from, to + before, part)) {
			pt_read_end(&from);
			pt_count(r, C_BAD_SLOT, 1);
			return false;
		}
		if (before)
			memcpy(to, &header, before);
		done += part;
		WRITE_ONCE(r->slots[at].word, buf | (u64)(before + part) << 32 | (done < skb->len ? SLOT_MORE : 0));
		before = 0;
		last = at;
		at = pt_next(r, at);
	} while (done < skb->len);
	pt_read_end(&from);
	r->bytes[last] = skb->len;
	r->head = at;
	return true;
}

static void tx_drop(struct pt_ring *r, struct sk_buff *skb)
{
	dev_kfree_skb_any(skb);
	dev_core_stats_tx_dropped_inc(r->p->dev);
}

netdev_tx_t pt_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct ptnet *p = netdev_priv(dev);
	struct pt_ring *r = &p->rings[skb_get_queue_mapping(skb)];
	struct netdev_queue *queue = tx_queue(r);
	bool flush = !p->more || !netdev_xmit_more();
	u32 need = DIV_ROUND_UP(skb->len + p->header, p->memory->buf_size), len = skb->len;

	if (unlikely(READ_ONCE(p->lent))) {
		/* The stack is told to wait, but an interface that goes up meanwhile starts its queues. */
		tx_drop(r, skb);
		return NETDEV_TX_OK;
	}
	if (unlikely(need > p->most || !len)) {
		pt_count(r, C_TOO_LONG, 1);
		tx_drop(r, skb);
	} else if (unlikely(pt_ours(r) < need)) {
		/* Queues are stopped before this can be; a host that takes slots back is not believed. */
		netif_tx_stop_queue(queue);
		pt_publish(r, r->head, SYNC_RECLAIM);
		tx_ask(r);
		return NETDEV_TX_BUSY;
	} else if (likely(tx_put(r, skb))) {
		skb_tx_timestamp(skb);
		u64_stats_update_begin(&r->sync);
		u64_stats_add(&r->counters[C_FRAMES], 1);
		u64_stats_add(&r->counters[C_BYTES], len);
		u64_stats_update_end(&r->sync);
		if (p->bql)
			flush = __netdev_tx_sent_queue(queue, len, !flush);
		dev_consume_skb_any(skb);
	} else {
		tx_drop(r, skb);
	}
	if (pt_ours(r) < p->most) {
		netif_tx_stop_queue(queue);
		pt_count(r, C_STOPS, 1);
	}
	if (flush || netif_xmit_stopped(queue)) {
		pt_publish(r, r->head, SYNC_RECLAIM);
		tx_clean(r);
		if (netif_xmit_stopped(queue))
			tx_ask(r);
	}
	return NETDEV_TX_OK;
}
