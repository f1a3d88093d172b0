// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The rings: frames out, frames in.
 *
 * Sending. A frame becomes one descriptor for each stretch of memory, before them one with the checksum context if the
 * device has another one. Then the device must be told: a write of the tail, the doorbell. Where a doorbell leaves the
 * guest it costs more than all the rest, so there are three ways around it: the stack says that more comes (X_MORE);
 * a completion interrupt is due anyway, and the poll that it starts rings for what has gathered (X_SC); the host looks
 * by itself at a tail in memory (X_CSB).
 *
 * Completion. The last descriptor of each frame asks for a report. With X_LAZY reports interrupt no processor: the
 * sender looks when a quarter of the ring is left, the poll looks whenever it runs, and only a sender that has stopped
 * turns the interrupt on. The sender's socket is let go at once then, because it is unknown when the report is seen.
 */
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <net/ip6_checksum.h>

#include "e1000x.h"

#define RX_BYTES 2048
#define TX_MOST 16384u		/* bytes of one descriptor */
#define TX_ROOM (MAX_SKB_FRAGS + 6)
/* The queue goes on with so much: in a small ring, when that is empty. */
#define TX_WAKE(ring) min_t(u32, 2 * TX_ROOM, (ring)->size - 1)

static int ring_alloc(struct e1000x *x, struct x_ring *ring, u32 size)
{
	memset(ring, 0, sizeof(*ring));
	ring->size = size;
	ring->desc = dma_alloc_coherent(&x->pdev->dev, size * sizeof(*ring->desc), &ring->dma, GFP_KERNEL);
	return ring->desc ? 0 : -ENOMEM;
}

int x_rings_alloc(struct e1000x *x, u32 tx, u32 rx)
{
	x->tx_buffers = kcalloc(tx, sizeof(*x->tx_buffers), GFP_KERNEL);
	x->rx_buffers = kcalloc(rx, sizeof(*x->rx_buffers), GFP_KERNEL);
	if (x->tx_buffers && x->rx_buffers && !ring_alloc(x, &x->tx, tx) && !ring_alloc(x, &x->rx, rx))
		return 0;
	x_rings_free(x);
	return -ENOMEM;
}

static void ring_free(struct e1000x *x, struct x_ring *ring)
{
	if (ring->desc)
		dma_free_coherent(&x->pdev->dev, ring->size * sizeof(*ring->desc), ring->desc, ring->dma);
	ring->desc = NULL;
}

void x_rings_free(struct e1000x *x)
{
	ring_free(x, &x->tx);
	ring_free(x, &x->rx);
	kfree(x->tx_buffers);
	kfree(x->rx_buffers);
	x->tx_buffers = NULL;
	x->rx_buffers = NULL;
}

static void tx_unmap(struct e1000x *x, struct x_tx_buffer *buffer)
{
	if (!buffer->len)
		return;
	if (buffer->page)
		dma_unmap_page(&x->pdev->dev, buffer->dma, buffer->len, DMA_TO_DEVICE);
	else
		dma_unmap_single(&x->pdev->dev, buffer->dma, buffer->len, DMA_TO_DEVICE);
	buffer->len = 0;
}

/* Everything that is still in the rings; the device is off. */
void x_rings_drop(struct e1000x *x)
{
	u32 i;

	for (i = 0; i < x->tx.size; i++) {
		tx_unmap(x, &x->tx_buffers[i]);
		dev_kfree_skb_any(x->tx_buffers[i].skb);
		x->tx_buffers[i].skb = NULL;
	}
	for (i = 0; i < x->rx.size; i++) {
		struct x_rx_buffer *buffer = &x->rx_buffers[i];

		if (!buffer->skb)
			continue;
		dma_unmap_single(&x->pdev->dev, buffer->dma, RX_BYTES, DMA_FROM_DEVICE);
		dev_kfree_skb_any(buffer->skb);
		buffer->skb = NULL;
	}
}

/* Tells the device how far the transmit ring is filled. */
void x_tx_kick(struct e1000x *x)
{
	struct x_ring *ring = &x->tx;

	if (ring->tail == ring->use)
		return;
	ring->tail = ring->use;
	if (x->csb) {
		/* Descriptors before the tail, and the tail before the look whether the device sees it. */
		dma_wmb();
		WRITE_ONCE(x->csb->guest_tdt, ring->tail);
		smp_mb();
		if (!(READ_ONCE(x->csb->host_need_txkick) & 1)) {
			x->counters[C_CSB_SILENT]++;
			return;
		}
	}
	x->counters[C_TX_DOORBELLS]++;
	x_set(x, R_TX + RING_TAIL, ring->tail);
}

static u32 tx_put(struct x_ring *ring, u64 addr, u64 word)
{
	u32 at = ring->use;

	ring->desc[at].addr = cpu_to_le64(addr);
	ring->desc[at].word = cpu_to_le64(word);
	ring->use = x_next(ring, at);
	return at;
}

/*
 * Which checksums the device shall make; puts a context descriptor if it has another one. SDM 3.3.6: where sums start,
 * where they go, where they end.
 */
static int tx_offload(struct e1000x *x, struct sk_buff *skb, u64 *command, u64 *options)
{
	bool tso = skb_is_gso(skb), ip4 = vlan_get_protocol(skb) == htons(ETH_P_IP);
	u32 ip = skb_network_offset(skb), l4, header;
	u64 low, high;

	*command = TXW_DEXT | TXW_DATA | TXW_IFCS;
	*options = 0;
	if (skb->ip_summed != CHECKSUM_PARTIAL)
		return 0;
	l4 = skb_checksum_start_offset(skb);
	low = (u64)l4 << 32 | (u64)(l4 + skb->csum_offset) << 40;
	high = TXW_DEXT;
	*options = TXW_TXSM;
	if (tso) {
		int err = skb_cow_head(skb, 0);

		if (err)
			return err;
		header = skb_tcp_all_headers(skb);
		/* Where lengths are put right in each segment. */
		low |= ip;
		if (ip4) {
			ip_hdr(skb)->tot_len = 0;
			ip_hdr(skb)->check = 0;
			tcp_hdr(skb)->check = ~csum_tcpudp_magic(ip_hdr(skb)->saddr, ip_hdr(skb)->daddr, 0, IPPROTO_TCP, 0);
			/* The sum of the IP header: starts, goes, ends. */
			low |= (ip + offsetof(struct iphdr, check)) << 8 | (u64)(l4 - 1) << 16;
			high |= TXC_IP;
			*options |= TXW_IXSM;
		} else {
			tcp_v6_gso_csum_prep(skb);
		}
		high |= TXC_TCP | TXW_TSE | (skb->len - header) | (u64)header << 40 |
			(u64)skb_shinfo(skb)->gso_size << 48;
		*command |= TXW_TSE;
	} else if (x->context == low) {
		return 0;
	}
	/* There are two contexts; only the one for plain checksums is remembered. */
	if (!tso)
		x->context = low;
	tx_put(&x->tx, low, high);
	return 0;
}

/* One descriptor for each 16 KiB; false if the memory cannot be mapped. */
static bool tx_map(struct e1000x *x, void *data, const skb_frag_t *frag, u32 len, u64 command, u64 options)
{
	u32 done = 0;

	while (done < len) {
		u32 part = min(len - done, TX_MOST), at;
		dma_addr_t dma = frag ? skb_frag_dma_map(&x->pdev->dev, frag, done, part, DMA_TO_DEVICE) :
					dma_map_single(&x->pdev->dev, data + done, part, DMA_TO_DEVICE);

		if (dma_mapping_error(&x->pdev->dev, dma))
			return false;
		at = tx_put(&x->tx, dma, command | options | part);
		x->tx_buffers[at] = (struct x_tx_buffer){ .dma = dma, .len = part, .page = frag };
		done += part;
	}
	return true;
}

netdev_tx_t x_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct e1000x *x = netdev_priv(dev);
	struct x_ring *ring = &x->tx;
	u64 command, options;
	u32 first, last, i;
	bool due, ok;

	spin_lock(&x->tx_lock);
	if (x_is(x, X_LAZY) && x_free(ring) < ring->size / 4) {
		x->counters[C_TX_CLEANED_BY_SENDER]++;
		x_tx_clean(x);
	}
	/* Is a report still to come for what the device knows of? */
	due = ring->clean != ring->tail;
	first = ring->use;
	ok = !tx_offload(x, skb, &command, &options) &&
	     tx_map(x, skb->data, NULL, skb_headlen(skb), command, options);
	for (i = 0; ok && i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

		ok = tx_map(x, NULL, frag, skb_frag_size(frag), command, options);
	}
	if (!ok) {
		for (i = first; i != ring->use; i = x_next(ring, i))
			tx_unmap(x, &x->tx_buffers[i]);
		ring->use = first;
		x->context = 0;
		dev->stats.tx_dropped++;
		dev_kfree_skb_any(skb);
		x_tx_kick(x);
		spin_unlock(&x->tx_lock);
		return NETDEV_TX_OK;
	}
	last = (ring->use ? ring->use : ring->size) - 1;
	ring->desc[last].word |= cpu_to_le64(TXW_EOP | TXW_RS);
	x->tx_buffers[last].skb = skb;
	skb_tx_timestamp(skb);
	if (x_is(x, X_LAZY)) {
		skb_orphan(skb);
		nf_reset_ct(skb);
	}
	if (x_free(ring) < TX_ROOM) {
		netif_stop_queue(dev);
		x->counters[C_STOPS]++;
		x_tx_kick(x);
		/* Reports may have come before the interrupt was asked for. */
		if (x->csb)
			WRITE_ONCE(x->csb->guest_need_txkick, 1);
		if (x_is(x, X_LAZY) && !x_is(x, X_POLLING))
			x_set(x, R_IMS, x->msix ? INT_TXQ0 : INT_TXDW);
		smp_mb();
		x_tx_clean(x);
	} else if (x_is(x, X_MORE) && netdev_xmit_more()) {
		x->counters[C_TX_DEFERRED]++;
	} else if (x_is(x, X_SC) && due) {
		x->counters[C_TX_DEFERRED]++;
	} else {
		x_tx_kick(x);
	}
	spin_unlock(&x->tx_lock);
	return NETDEV_TX_OK;
}

/* Takes back what is reported and rings for what has gathered; the caller holds `tx_lock`. True if there was any. */
bool x_tx_clean(struct e1000x *x)
{
	struct x_ring *ring = &x->tx;
	u32 before = ring->clean, at = ring->clean, i;
	u64 bytes = 0, frames = 0;

	while (at != ring->tail) {
		/* To the end of a frame: only there is a report. */
		u32 end = at;

		while (!x->tx_buffers[end].skb && end != ring->tail)
			end = x_next(ring, end);
		if (end == ring->tail || !(le64_to_cpu(READ_ONCE(ring->desc[end].word)) & TXW_DD))
			break;
		for (i = at; ; i = x_next(ring, i)) {
			tx_unmap(x, &x->tx_buffers[i]);
			if (i == end)
				break;
		}
		bytes += x->tx_buffers[end].skb->len;
		frames++;
		dev_consume_skb_any(x->tx_buffers[end].skb);
		x->tx_buffers[end].skb = NULL;
		at = x_next(ring, end);
	}
	ring->clean = at;
	x->dev->stats.tx_packets += frames;
	x->dev->stats.tx_bytes += bytes;
	x_tx_kick(x);
	if (netif_queue_stopped(x->dev) && x_free(ring) >= TX_WAKE(ring) && netif_carrier_ok(x->dev)) {
		if (x->csb && x_is(x, X_LAZY))
			WRITE_ONCE(x->csb->guest_need_txkick, 0);
		netif_wake_queue(x->dev);
	}
	return at != before;
}

/* Fills the receive ring with buffers and tells the device. */
static void rx_fill(struct e1000x *x)
{
	struct x_ring *ring = &x->rx;

	while (x_free(ring)) {
		struct x_rx_buffer *buffer = &x->rx_buffers[ring->use];
		struct sk_buff *skb = netdev_alloc_skb_ip_align(x->dev, RX_BYTES);

		if (!skb) {
			x->counters[C_RX_NO_MEMORY]++;
			break;
		}
		buffer->dma = dma_map_single(&x->pdev->dev, skb->data, RX_BYTES, DMA_FROM_DEVICE);
		if (dma_mapping_error(&x->pdev->dev, buffer->dma)) {
			dev_kfree_skb_any(skb);
			break;
		}
		buffer->skb = skb;
		ring->desc[ring->use].addr = cpu_to_le64(buffer->dma);
		ring->desc[ring->use].word = 0;
		ring->use = x_next(ring, ring->use);
	}
	if (ring->tail == ring->use)
		return;
	ring->tail = ring->use;
	dma_wmb();
	if (x->csb) {
		WRITE_ONCE(x->csb->guest_rdt, ring->tail);
		smp_mb();
		if (!READ_ONCE(x->csb->host_need_rxkick) && READ_ONCE(x->csb->host_rxkick_at) != ring->tail)
			return;
	}
	x->counters[C_RX_DOORBELLS]++;
	x_set(x, R_RX + RING_TAIL, ring->tail);
}

static void rx_frame(struct e1000x *x, struct x_rx_buffer *buffer, u64 word)
{
	struct sk_buff *skb = buffer->skb;
	u32 len = word & RXW_LEN;

	dma_unmap_single(&x->pdev->dev, buffer->dma, RX_BYTES, DMA_FROM_DEVICE);
	buffer->skb = NULL;
	/* We take no frame that is longer than a buffer: the largest MTU sees to it. */
	if (word & RXW_ERRORS || !(word & RXW_EOP) || len < ETH_ZLEN || len > RX_BYTES) {
		x->dev->stats.rx_errors++;
		dev_kfree_skb_any(skb);
		return;
	}
	skb_put(skb, len);
	if (!(word & RXW_IXSM) && word & RXW_TCPCS && !(word & RXW_TCPE) && x->dev->features & NETIF_F_RXCSUM)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb->protocol = eth_type_trans(skb, x->dev);
	x->dev->stats.rx_packets++;
	x->dev->stats.rx_bytes += len;
	if (x_is(x, X_NAPI) || x_is(x, X_POLLING))
		napi_gro_receive(&x->napi, skb);
	else
		netif_rx(skb);
}

static int rx_clean(struct e1000x *x, int budget)
{
	struct x_ring *ring = &x->rx;
	int frames = 0;

	while (frames < budget && ring->clean != ring->use) {
		u64 word = le64_to_cpu(READ_ONCE(ring->desc[ring->clean].word));

		if (!(word & RXW_DD))
			break;
		dma_rmb();
		rx_frame(x, &x->rx_buffers[ring->clean], word);
		ring->clean = x_next(ring, ring->clean);
		frames++;
		if (frames % 32 == 0)
			rx_fill(x);
	}
	rx_fill(x);
	return frames;
}

static bool rx_waits(struct e1000x *x)
{
	const struct x_ring *ring = &x->rx;

	return ring->clean != ring->use && le64_to_cpu(READ_ONCE(ring->desc[ring->clean].word)) & RXW_DD;
}

/*
 * The poll. When it has caught up it turns interrupts on again. With a CSB that is a flag in memory, and because the
 * host may have looked at the flag a moment before we set it, the ring is looked at once more.
 *
 * Device polling turns nothing on: the timer comes again, later if this poll took long, so that no more than `share`
 * percent of the processor go into it.
 */
int x_poll(struct napi_struct *napi, int budget)
{
	struct e1000x *x = container_of(napi, struct e1000x, napi);
	int frames;

	x->counters[C_POLLS]++;
	if (x->csb)
		WRITE_ONCE(x->csb->guest_need_rxkick, 0);
	spin_lock(&x->tx_lock);
	x_tx_clean(x);
	spin_unlock(&x->tx_lock);
	frames = rx_clean(x, budget);
	if (frames == budget && budget && !x_is(x, X_POLLING))
		return budget;
	if (x_is(x, X_POLLING)) {
		s64 spent = ktime_to_ns(ktime_sub(ktime_get(), x->poll_began));
		u64 pause = div_u64(max_t(s64, spent, 0) * (100 - x->share), x->share);

		frames = min(frames, budget - 1);
		if (napi_complete_done(napi, frames))
			hrtimer_start(&x->timer, ns_to_ktime(max_t(u64, pause, x->poll_ns)), HRTIMER_MODE_REL_SOFT);
		return frames;
	}
	if (!napi_complete_done(napi, frames))
		return frames;
	if (x->csb) {
		WRITE_ONCE(x->csb->guest_need_rxkick, 1);
		smp_mb();
		if (rx_waits(x) && napi_schedule_prep(napi)) {
			__napi_schedule(napi);
			return frames;
		}
	}
	x_set(x, R_IMS, x_ring_causes(x));
	return frames;
}

/* The device is reset and off: rings from the start, full of buffers. */
void x_rings_start(struct e1000x *x)
{
	struct x_ring *rings[] = { &x->tx, &x->rx };
	u32 at[] = { R_TX, R_RX }, i;

	for (i = 0; i < 2; i++) {
		struct x_ring *ring = rings[i];

		memset(ring->desc, 0, ring->size * sizeof(*ring->desc));
		ring->use = ring->clean = ring->tail = 0;
		x_set(x, at[i] + RING_BAL, lower_32_bits(ring->dma));
		x_set(x, at[i] + RING_BAH, upper_32_bits(ring->dma));
		x_set(x, at[i] + RING_LEN, ring->size * sizeof(*ring->desc));
		x_set(x, at[i] + RING_HEAD, 0);
		x_set(x, at[i] + RING_TAIL, 0);
		x_set(x, at[i] + RING_DELAY, 0);
	}
	x->context = 0;
	rx_fill(x);
}
