// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The rings: frames out, frames in.
 *
 * Each descriptor says whose it is, so neither side needs the other's index. Sending, the descriptors of a frame become
 * the device's from the last to the first, and then the device must be told: the doorbell, which leaves the guest. With
 * a status block (CSB) it is told only if it asks for that: an I/O core that is awake looks by itself.
 *
 * Completion. Without a CSB the device interrupts for it. With one it does only while the queue stands still; else the
 * sender looks when a quarter of the ring is left, and the poll whenever it runs. The sender's socket is let go at once
 * then, because it is unknown when that will be.
 */
#include <linux/etherdevice.h>
#include <linux/in.h>
#include <linux/ip.h>

#include "r8169x.h"

#define RX_BYTES 2048u
#define TX_MOST 32768u		/* bytes of one descriptor */
#define TX_ROOM (MAX_SKB_FRAGS + 4)
/* The queue goes on with so much: in a small ring, when that is empty. */
#define TX_WAKE(ring) min_t(u32, 2 * TX_ROOM, (ring)->size - 1)

static int ring_alloc(struct r8169x *r, struct r_ring *ring, u32 size)
{
	ring->size = size;
	ring->desc = dma_alloc_coherent(&r->pdev->dev, size * sizeof(*ring->desc), &ring->dma, GFP_KERNEL);
	ring->buffers = kcalloc(size, sizeof(*ring->buffers), GFP_KERNEL);
	return ring->desc && ring->buffers ? 0 : -ENOMEM;
}

static void ring_free(struct r8169x *r, struct r_ring *ring)
{
	if (ring->desc)
		dma_free_coherent(&r->pdev->dev, ring->size * sizeof(*ring->desc), ring->desc, ring->dma);
	kfree(ring->buffers);
	memset(ring, 0, sizeof(*ring));
}

int r_rings_alloc(struct r8169x *r, u32 tx, u32 rx)
{
	if (!ring_alloc(r, &r->tx, tx) && !ring_alloc(r, &r->rx, rx))
		return 0;
	r_rings_free(r);
	return -ENOMEM;
}

void r_rings_free(struct r8169x *r)
{
	ring_free(r, &r->tx);
	ring_free(r, &r->rx);
}

static void tx_unmap(struct r8169x *r, struct r_buffer *buffer)
{
	if (!buffer->len)
		return;
	if (buffer->page)
		dma_unmap_page(&r->pdev->dev, buffer->dma, buffer->len, DMA_TO_DEVICE);
	else
		dma_unmap_single(&r->pdev->dev, buffer->dma, buffer->len, DMA_TO_DEVICE);
	buffer->len = 0;
}

/* Everything that is still in the rings; the device is off. */
void r_rings_drop(struct r8169x *r)
{
	u32 i;

	for (i = 0; i < r->tx.size; i++) {
		tx_unmap(r, &r->tx.buffers[i]);
		dev_kfree_skb_any(r->tx.buffers[i].skb);
		r->tx.buffers[i].skb = NULL;
	}
	for (i = 0; i < r->rx.size; i++) {
		struct r_buffer *buffer = &r->rx.buffers[i];

		if (!buffer->skb)
			continue;
		dma_unmap_single(&r->pdev->dev, buffer->dma, RX_BYTES, DMA_FROM_DEVICE);
		dev_kfree_skb_any(buffer->skb);
		buffer->skb = NULL;
	}
}

static u64 ring_end(const struct r_ring *ring, u32 at)
{
	return at + 1 == ring->size ? D_EOR : 0;
}

/* Tells the device of what is in the transmit ring. */
static void tx_kick(struct r8169x *r)
{
	if (r->told)
		return;
	r->told = true;
	/* The descriptors before the look whether the device sees them. */
	if (r->csb) {
		WRITE_ONCE(r->csb->guest_tdt, r->tx.use);
		smp_mb();
		if (!(READ_ONCE(r->csb->host_need_txkick) & 1)) {
			r->counters[C_CSB_SILENT]++;
			return;
		}
	}
	r->counters[C_TX_DOORBELLS]++;
	writeb(TPPOLL_NPQ, r->regs + R_TPPOLL);
}

/* What the device is to do with a frame, in each of its descriptors. */
static u64 tx_options(const struct sk_buff *skb)
{
	u32 mss = skb_shinfo(skb)->gso_size;

	if (mss)
		return TXD_LGSEN | (u64)(mss & TXD_MSS) << TXD_MSS_SHIFT;
	if (skb->ip_summed != CHECKSUM_PARTIAL)
		return 0;
	return TXD_IPCS | (ip_hdr(skb)->protocol == IPPROTO_TCP ? TXD_TCPCS : TXD_UDPCS);
}

/* One descriptor for each TX_MOST bytes, all but the frame's first the device's; false if the memory cannot be mapped. */
static bool tx_map(struct r8169x *r, void *data, const skb_frag_t *frag, u32 len, u32 first, u64 options)
{
	struct r_ring *ring = &r->tx;
	u32 done = 0;

	while (done < len) {
		u32 part = min(len - done, TX_MOST), at = ring->use;
		dma_addr_t dma = frag ? skb_frag_dma_map(&r->pdev->dev, frag, done, part, DMA_TO_DEVICE) :
					dma_map_single(&r->pdev->dev, data + done, part, DMA_TO_DEVICE);

		if (dma_mapping_error(&r->pdev->dev, dma))
			return false;
		ring->buffers[at] = (struct r_buffer){ .dma = dma, .len = part, .page = frag };
		ring->desc[at].addr = cpu_to_le64(dma);
		/* The device stops at the first one until that is its, too. */
		WRITE_ONCE(ring->desc[at].word, cpu_to_le64(options | part | ring_end(ring, at) |
							    (at == first ? D_FS : D_OWN)));
		ring->use = r_next(ring, at);
		done += part;
	}
	return true;
}

/* Takes back what the device has sent; the caller holds `tx_lock`. */
static void tx_clean(struct r8169x *r)
{
	struct r_ring *ring = &r->tx;
	u64 bytes = 0, frames = 0;

	while (ring->clean != ring->use) {
		struct r_buffer *buffer = &ring->buffers[ring->clean];

		if (le64_to_cpu(READ_ONCE(ring->desc[ring->clean].word)) & D_OWN)
			break;
		tx_unmap(r, buffer);
		if (buffer->skb) {
			bytes += buffer->skb->len;
			frames++;
			dev_consume_skb_any(buffer->skb);
			buffer->skb = NULL;
		}
		ring->clean = r_next(ring, ring->clean);
	}
	r->dev->stats.tx_packets += frames;
	r->dev->stats.tx_bytes += bytes;
	if (netif_queue_stopped(r->dev) && r_free(ring) >= TX_WAKE(ring) && netif_carrier_ok(r->dev)) {
		if (r->csb)
			WRITE_ONCE(r->csb->guest_need_txkick, 0);
		netif_wake_queue(r->dev);
	}
}

netdev_tx_t r_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct r8169x *r = netdev_priv(dev);
	struct r_ring *ring = &r->tx;
	u64 options = tx_options(skb);
	u32 first, last, i;
	bool ok;

	/* A card without padding of its own sends what is behind the frame. */
	if (skb_put_padto(skb, ETH_ZLEN))
		return NETDEV_TX_OK;
	spin_lock(&r->tx_lock);
	if (r->csb && r_free(ring) < ring->size / 4)
		tx_clean(r);
	first = ring->use;
	ok = tx_map(r, skb->data, NULL, skb_headlen(skb), first, options);
	for (i = 0; ok && i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

		ok = tx_map(r, NULL, frag, skb_frag_size(frag), first, options);
	}
	if (!ok) {
		for (i = first; i != ring->use; i = r_next(ring, i)) {
			ring->desc[i].word = 0;
			tx_unmap(r, &ring->buffers[i]);
		}
		ring->use = first;
		dev->stats.tx_dropped++;
		dev_kfree_skb_any(skb);
		tx_kick(r);
		spin_unlock(&r->tx_lock);
		return NETDEV_TX_OK;
	}
	last = (ring->use ? ring->use : ring->size) - 1;
	ring->buffers[last].skb = skb;
	skb_tx_timestamp(skb);
	if (r->csb) {
		skb_orphan(skb);
		nf_reset_ct(skb);
	}
	ring->desc[last].word |= cpu_to_le64(D_LS);
	/* All of the frame before the bit that lets the device see it. */
	dma_wmb();
	WRITE_ONCE(ring->desc[first].word, ring->desc[first].word | cpu_to_le64(D_OWN));
	r->told = false;
	if (r_free(ring) < TX_ROOM) {
		netif_stop_queue(dev);
		r->counters[C_STOPS]++;
		tx_kick(r);
		if (r->csb)
			WRITE_ONCE(r->csb->guest_need_txkick, 1);
		/* Frames may have been sent before the interrupt was asked for. */
		smp_mb();
		tx_clean(r);
	} else if (!netdev_xmit_more()) {
		tx_kick(r);
	}
	spin_unlock(&r->tx_lock);
	return NETDEV_TX_OK;
}

/* Fills the receive ring with buffers. The device sees them by itself. */
static void rx_fill(struct r8169x *r)
{
	struct r_ring *ring = &r->rx;

	while (r_free(ring)) {
		u32 at = ring->use;
		struct r_buffer *buffer = &ring->buffers[at];
		struct sk_buff *skb = netdev_alloc_skb_ip_align(r->dev, RX_BYTES);

		if (!skb) {
			r->counters[C_RX_NO_MEMORY]++;
			break;
		}
		buffer->dma = dma_map_single(&r->pdev->dev, skb->data, RX_BYTES, DMA_FROM_DEVICE);
		if (dma_mapping_error(&r->pdev->dev, buffer->dma)) {
			dev_kfree_skb_any(skb);
			break;
		}
		buffer->skb = skb;
		ring->desc[at].addr = cpu_to_le64(buffer->dma);
		dma_wmb();
		WRITE_ONCE(ring->desc[at].word, cpu_to_le64(D_OWN | ring_end(ring, at) | RX_BYTES));
		ring->use = r_next(ring, at);
	}
}

static void rx_frame(struct r8169x *r, struct r_buffer *buffer, u64 word)
{
	struct sk_buff *skb = buffer->skb;
	u32 len = word & RXD_LEN;

	dma_unmap_single(&r->pdev->dev, buffer->dma, RX_BYTES, DMA_FROM_DEVICE);
	buffer->skb = NULL;
	/* We take no frame that is longer than a buffer: the largest MTU sees to it. */
	if (word & RXD_RES || ~word & (D_FS | D_LS) || len < ETH_ZLEN + ETH_FCS_LEN || len > RX_BYTES) {
		r->dev->stats.rx_errors++;
		dev_kfree_skb_any(skb);
		return;
	}
	skb_put(skb, len - ETH_FCS_LEN);
	if (word & (RXD_TCP | RXD_UDP) && !(word & RXD_WRONG) && r->dev->features & NETIF_F_RXCSUM)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	r->dev->stats.rx_packets++;
	r->dev->stats.rx_bytes += skb->len;
	skb->protocol = eth_type_trans(skb, r->dev);
	napi_gro_receive(&r->napi, skb);
}

static bool rx_waits(const struct r8169x *r)
{
	const struct r_ring *ring = &r->rx;

	return ring->clean != ring->use && !(le64_to_cpu(READ_ONCE(ring->desc[ring->clean].word)) & D_OWN);
}

static int rx_clean(struct r8169x *r, int budget)
{
	struct r_ring *ring = &r->rx;
	int frames = 0;

	while (frames < budget && rx_waits(r)) {
		dma_rmb();
		rx_frame(r, &ring->buffers[ring->clean], le64_to_cpu(READ_ONCE(ring->desc[ring->clean].word)));
		ring->clean = r_next(ring, ring->clean);
		frames++;
		if (frames % 32 == 0)
			rx_fill(r);
	}
	rx_fill(r);
	return frames;
}

/*
 * The poll. When it has caught up it asks for interrupts again. With a CSB that is a flag in memory, and because the host
 * may have looked at the flag a moment before we set it, the ring is looked at once more.
 */
int r_poll(struct napi_struct *napi, int budget)
{
	struct r8169x *r = container_of(napi, struct r8169x, napi);
	int frames;

	spin_lock(&r->tx_lock);
	tx_clean(r);
	spin_unlock(&r->tx_lock);
	/* netpoll, which wants only what was sent; no poll would ask for interrupts again. */
	if (!budget)
		return 0;
	r->counters[C_POLLS]++;
	if (r->csb)
		WRITE_ONCE(r->csb->guest_need_rxkick, 0);
	frames = rx_clean(r, budget);
	if (frames == budget || !napi_complete_done(napi, frames))
		return frames;
	if (!r->csb) {
		writew(READ_ONCE(r->mask), r->regs + R_IMR);
		return frames;
	}
	WRITE_ONCE(r->csb->guest_need_rxkick, 1);
	smp_mb();
	if (rx_waits(r))
		napi_schedule(napi);
	return frames;
}

static void ring_tell(struct r8169x *r, const struct r_ring *ring, u32 reg)
{
	/* The low half is what counts. */
	writel(upper_32_bits(ring->dma), r->regs + reg + 4);
	writel(lower_32_bits(ring->dma), r->regs + reg);
}

/* The device is reset and off: rings from the start, the receive ring full of buffers. */
void r_rings_start(struct r8169x *r)
{
	memset(r->tx.desc, 0, r->tx.size * sizeof(*r->tx.desc));
	memset(r->rx.desc, 0, r->rx.size * sizeof(*r->rx.desc));
	/* The device finds the end of the ring by this bit, whatever else a descriptor says. */
	r->tx.desc[r->tx.size - 1].word = cpu_to_le64(D_EOR);
	r->rx.desc[r->rx.size - 1].word = cpu_to_le64(D_EOR);
	r->tx.use = r->tx.clean = r->rx.use = r->rx.clean = 0;
	r->told = true;
	rx_fill(r);
	ring_tell(r, &r->tx, R_TNPDS);
	ring_tell(r, &r->rx, R_RDSAR);
}
