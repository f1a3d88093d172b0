// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ptnet: a network interface whose rings and buffers are a host port's own, in memory that both see.
 *
 * There is no descriptor to translate and no register to touch for a frame. Each side tells the other where it is in
 * two pages of guest memory, the CSB, and rings the other's bell only when that one sleeps. tx.c and rx.c have the
 * frames, ring.c the agreement, memory.c the memory, netmap.c has programs use the rings; this file has the device.
 *
 * The host writes into the CSB from CREATE to DELETE. So whatever ends the interface, this driver, or this kernel, ends
 * that first, and then takes the addresses away.
 */
#include <linux/etherdevice.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/rtnetlink.h>

#include "ptnet.h"

static bool offload = true, bql = true, more = true;
module_param(offload, bool, 0444);
MODULE_PARM_DESC(offload, "checksums and segmentation by the host, with a virtio-net header before each frame (1)");
module_param(bql, bool, 0444);
MODULE_PARM_DESC(bql, "byte queue limits (1)");
module_param(more, bool, 0444);
MODULE_PARM_DESC(more, "what the stack sends at once becomes visible at once (1)");

static irqreturn_t pt_interrupt(int irq, void *data)
{
	struct pt_ring *r = data;

	WRITE_ONCE(r->interrupts, r->interrupts + 1);
	/* News of the link come with the interrupt of the first RX ring. */
	if (r->rx && !r->index)
		pt_link(r->p);
	if (READ_ONCE(r->p->lent))
		pt_files_wake(r);
	else
		napi_schedule_irqoff(&r->napi);
	return IRQ_HANDLED;
}

static void pt_free_vectors(struct ptnet *p, u32 rings)
{
	while (rings--) {
		irq_update_affinity_hint(p->rings[rings].vector, NULL);
		free_irq(p->rings[rings].vector, &p->rings[rings]);
	}
}

static int pt_request_vectors(struct ptnet *p)
{
	u32 rings = p->tx_rings + p->rx_rings, i;
	int err;

	for (i = 0; i < rings; i++) {
		struct pt_ring *r = &p->rings[i];

		snprintf(r->name, sizeof(r->name), "%s-%s%u", p->dev->name, r->rx ? "rx" : "tx", r->index);
		r->vector = pci_irq_vector(p->pdev, i);
		err = request_irq(r->vector, pt_interrupt, 0, r->name, r);
		if (err) {
			pt_free_vectors(p, i);
			return err;
		}
		/* The two rings of a pair on one processor. */
		irq_set_affinity_and_hint(r->vector, cpumask_of(cpumask_local_spread(r->index, NUMA_NO_NODE)));
	}
	return 0;
}

/* Each processor sends through a ring of its own, as far as there are enough. */
static void pt_spread(struct ptnet *p)
{
	cpumask_var_t mask;
	u32 i, at, cpu;

	if (p->tx_rings == 1 || !zalloc_cpumask_var(&mask, GFP_KERNEL))
		return;
	for (i = 0; i < p->tx_rings; i++) {
		cpumask_clear(mask);
		at = 0;
		for_each_online_cpu(cpu)
			if (at++ % p->tx_rings == i)
				cpumask_set_cpu(cpu, mask);
		if (!cpumask_empty(mask))
			netif_set_xps_queue(p->dev, mask, i);
	}
	free_cpumask_var(mask);
}

/* The host ends what it does with the rings; it has ended when this returns. */
static void pt_delete(struct ptnet *p)
{
	pt_set(p, R_CONTROL, CONTROL_DELETE);
	/* A write to memory may still be on its way; the answer is behind it. */
	pt_get(p, R_CONTROL);
}

static int pt_create(struct ptnet *p)
{
	u32 rings = p->tx_rings + p->rx_rings, i;
	int err = 0;

	for (i = 0; i < rings; i++) {
		WRITE_ONCE(p->rings[i].guest->need_kick, p->rings[i].rx);
		WRITE_ONCE(p->rings[i].host->need_kick, 1);
	}
	virt_mb();
	pt_set(p, R_CONTROL, CONTROL_CREATE);
	i = pt_get(p, R_CONTROL);
	if (i) {
		netdev_err(p->dev, "the host cannot serve the rings: error %u\n", i);
		return -EIO;
	}
	for (i = 0; i < rings && !err; i++)
		err = pt_ring_begin(&p->rings[i]);
	if (err)
		pt_delete(p);
	return err;
}

/* The host begins to serve the rings. */
static int pt_serve(struct ptnet *p)
{
	int err = pt_request_vectors(p);

	if (err)
		return err;
	err = pt_create(p);
	if (err)
		pt_free_vectors(p, p->tx_rings + p->rx_rings);
	else
		p->serving = true;
	return err;
}

static void pt_end(struct ptnet *p)
{
	/* It does not serve a card that could not be resumed. */
	if (!p->serving)
		return;
	p->serving = false;
	pt_delete(p);
	pt_free_vectors(p, p->tx_rings + p->rx_rings);
}

/* The stack has the rings from now on. */
static void pt_start(struct ptnet *p)
{
	u32 rings = p->tx_rings + p->rx_rings, i;

	for (i = 0; i < rings; i++) {
		struct pt_ring *r = &p->rings[i];

		if (r->rx)
			pt_rx_begin(r);
		else
			pt_tx_begin(r);
		napi_enable(&r->napi);
	}
	p->polled = true;
	pt_link(p);
	netif_tx_start_all_queues(p->dev);
	/* Interrupts that came before a poll could run were for nothing: each poll runs once. */
	local_bh_disable();
	for (i = 0; i < rings; i++)
		napi_schedule(&p->rings[i].napi);
	local_bh_enable();
}

static void pt_stop(struct ptnet *p)
{
	u32 rings = p->tx_rings + p->rx_rings, i;

	if (!p->polled)
		return;
	p->polled = false;
	/* First the polls, which may wake queues. */
	for (i = 0; i < rings; i++)
		napi_disable(&p->rings[i].napi);
	netif_tx_disable(p->dev);
}

static int pt_open(struct net_device *dev)
{
	struct ptnet *p = netdev_priv(dev);
	int err;

	/* What programs have, the stack gets when they have done. */
	if (p->lent)
		return 0;
	err = pt_serve(p);
	if (!err)
		pt_start(p);
	return err;
}

static int pt_close(struct net_device *dev)
{
	struct ptnet *p = netdev_priv(dev);

	pt_stop(p);
	if (!p->lent)
		pt_end(p);
	netif_carrier_off(dev);
	return 0;
}

/* The card is programs' until pt_take_back(); the caller holds rtnl. */
int pt_lend(struct ptnet *p)
{
	int err = p->serving ? 0 : pt_serve(p);

	if (err)
		return err;
	/* Interrupts are the programs' from here on. */
	WRITE_ONCE(p->lent, true);
	pt_stop(p);
	return 0;
}

void pt_take_back(struct ptnet *p)
{
	WRITE_ONCE(p->lent, false);
	if (p->serving && netif_running(p->dev))
		pt_start(p);
	else
		pt_end(p);
}

static void pt_stats(struct net_device *dev, struct rtnl_link_stats64 *to)
{
	struct ptnet *p = netdev_priv(dev);
	u32 i;

	for (i = 0; i < p->tx_rings + p->rx_rings; i++) {
		struct pt_ring *r = &p->rings[i];
		u64 c[C_COUNTERS];

		pt_counters(r, c);
		if (!r->rx) {
			to->tx_packets += c[C_FRAMES];
			to->tx_bytes += c[C_BYTES];
			continue;
		}
		to->rx_packets += c[C_FRAMES];
		to->rx_bytes += c[C_BYTES];
		to->rx_dropped += c[C_NO_MEMORY];
		to->rx_length_errors += c[C_TOO_LONG];
		to->rx_frame_errors += c[C_BAD_HEADER];
		to->rx_errors += c[C_TOO_LONG] + c[C_BAD_SLOT] + c[C_BAD_HEADER];
	}
}

static const struct net_device_ops pt_ops = {
	.ndo_open = pt_open,
	.ndo_stop = pt_close,
	.ndo_start_xmit = pt_xmit,
	.ndo_get_stats64 = pt_stats,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

bool pt_is_ours(const struct net_device *dev)
{
	return dev->netdev_ops == &pt_ops;
}

/* Tells the device what this driver wants and where the CSB is; all of it is gone after a reset. */
static int pt_introduce(struct ptnet *p)
{
	u32 wanted = F_LINK;

	if (offload)
		wanted |= F_HEADER | F_HOST_USO;
#ifdef VIRTIO_NET_HDR_GSO_UDP_L4
	if (offload)
		wanted |= F_GUEST_USO;
#endif
	/* A kernel that crashed has ended nothing. */
	pt_delete(p);
	pt_set(p, R_FEATURES, wanted);
	p->features = pt_get(p, R_FEATURES) & wanted;
	/* The low half of an address is what counts, so it goes last. */
	pt_set(p, R_GUEST_HIGH, upper_32_bits(p->csb_dma));
	pt_set(p, R_GUEST_LOW, lower_32_bits(p->csb_dma));
	pt_set(p, R_HOST_HIGH, upper_32_bits(p->csb_dma + PT_PAGE));
	pt_set(p, R_HOST_LOW, lower_32_bits(p->csb_dma + PT_PAGE));
	pt_set(p, R_HEADER, p->features & F_HEADER ? sizeof(struct virtio_net_hdr_v1) : 0);
	p->header = pt_get(p, R_HEADER);
	return p->header && p->header != sizeof(struct virtio_net_hdr_v1) ? -EINVAL : 0;
}

/* The host forgets the CSB. */
static void pt_part(struct ptnet *p)
{
	static const u32 addresses[] = { R_GUEST_HIGH, R_GUEST_LOW, R_HOST_HIGH, R_HOST_LOW };
	u32 i;

	pt_delete(p);
	for (i = 0; i < ARRAY_SIZE(addresses); i++)
		pt_set(p, addresses[i], 0);
	pt_get(p, R_CONTROL);
}

/* What the interface can do, and the longest frame that it sends. */
static void pt_describe(struct ptnet *p)
{
	struct net_device *dev = p->dev;
	u32 low = pt_get(p, R_MAC_LOW), high = pt_get(p, R_MAC_HIGH), mtu = pt_get(p, R_MTU), longest;
	u8 mac[ETH_ALEN] = { high >> 8, high, low >> 24, low >> 16, low >> 8, low };

	if (is_valid_ether_addr(mac))
		eth_hw_addr_set(dev, mac);
	else
		eth_hw_addr_random(dev);
	if (p->header) {
		dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_TSO_ECN;
		if (p->features & F_HOST_USO)
			dev->hw_features |= NETIF_F_GSO_UDP_L4;
		dev->features = dev->hw_features | NETIF_F_RXCSUM;
	}
	dev->vlan_features = dev->features;
	dev->features |= NETIF_F_HIGHDMA;
	/* Half of the ring at most, so that one frame is filled in while another one is on its way. */
	p->most = min3(DIV_ROUND_UP(PT_LONGEST + p->header, p->memory->buf_size), p->rings[0].size / 2, (u32)PT_FRAGS);
	p->wake = p->rings[0].size / 2;
	longest = p->most * p->memory->buf_size - p->header;
	netif_set_tso_max_size(dev, min(longest, GSO_LEGACY_MAX_SIZE));
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = min_t(u32, longest - VLAN_ETH_HLEN - VLAN_HLEN, ETH_MAX_MTU);
	if (mtu >= ETH_MIN_MTU)
		dev->mtu = dev->max_mtu = min(mtu, dev->max_mtu);
	else
		dev->mtu = min_t(u32, ETH_DATA_LEN, dev->max_mtu);
}

static int pt_attach(struct ptnet *p)
{
	struct pci_dev *pdev = p->pdev;
	u32 rings = p->tx_rings + p->rx_rings, i;
	int err;

	p->csb = dmam_alloc_coherent(&pdev->dev, 2 * PT_PAGE, &p->csb_dma, GFP_KERNEL);
	p->rings = devm_kcalloc(&pdev->dev, rings, sizeof(*p->rings), GFP_KERNEL);
	if (!p->csb || !p->rings)
		return -ENOMEM;
	err = pt_rings_map(p);
	if (err)
		return dev_err_probe(&pdev->dev, err, "the memory has not the rings that the device tells of\n");
	err = pci_alloc_irq_vectors(pdev, rings, rings, PCI_IRQ_MSIX);
	if (err < 0)
		return dev_err_probe(&pdev->dev, err, "no %u interrupts\n", rings);
	err = pt_introduce(p);
	if (err)
		goto failed;
	pt_describe(p);
	for (i = 0; i < rings; i++) {
		struct pt_ring *r = &p->rings[i];

		if (r->rx)
			netif_napi_add(p->dev, &r->napi, pt_rx_poll);
		else
			netif_napi_add_tx(p->dev, &r->napi, pt_tx_poll);
	}
	netif_carrier_off(p->dev);
	err = register_netdev(p->dev);
	if (err)
		goto failed;
	pt_spread(p);
	netdev_info(p->dev, "%u TX and %u RX rings of %u and %u slots, %s\n", p->tx_rings, p->rx_rings,
		    p->rings[0].size, p->rings[p->tx_rings].size, p->header ? "offloads" : "no offloads");
	return 0;
failed:
	/* The polls go with the interface. */
	pt_part(p);
	pci_free_irq_vectors(pdev);
	return err;
}

static int pt_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct device *device = &pdev->dev;
	struct pt_memory *memory;
	u32 tx_rings, rx_rings;
	struct net_device *dev;
	void __iomem *regs;
	struct ptnet *p;
	int err;

	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = pcim_iomap_regions(pdev, BIT(0), KBUILD_MODNAME);
	if (err)
		return err;
	if (pci_resource_len(pdev, 0) < PT_REGS)
		return dev_err_probe(device, -EINVAL, "BAR 0 is too short\n");
	err = dma_set_mask_and_coherent(device, DMA_BIT_MASK(64));
	if (err)
		return err;
	pci_set_master(pdev);
	regs = pcim_iomap_table(pdev)[0];
	tx_rings = ioread32(regs + R_TX_RINGS);
	rx_rings = ioread32(regs + R_RX_RINGS);
	if (!tx_rings || !rx_rings || tx_rings > PT_RINGS || rx_rings > PT_RINGS - tx_rings)
		return dev_err_probe(device, -EINVAL, "%u TX and %u RX rings\n", tx_rings, rx_rings);
	memory = pt_memory_get(ioread32(regs + R_MEMORY_ID), device);
	if (!memory)
		return dev_err_probe(device, -EPROBE_DEFER, "memory %u is not there yet\n", ioread32(regs + R_MEMORY_ID));
	dev = alloc_etherdev_mqs(sizeof(*p), tx_rings, rx_rings);
	if (!dev) {
		pt_memory_put(memory);
		return -ENOMEM;
	}
	SET_NETDEV_DEV(dev, device);
	dev->netdev_ops = &pt_ops;
	dev->ethtool_ops = &pt_ethtool_ops;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE;
	pci_set_drvdata(pdev, dev);
	p = netdev_priv(dev);
	p->dev = dev;
	p->pdev = pdev;
	p->regs = regs;
	p->memory = memory;
	INIT_LIST_HEAD(&p->files);
	spin_lock_init(&p->files_lock);
	p->tx_rings = tx_rings;
	p->rx_rings = rx_rings;
	p->bql = bql;
	p->more = more;
	err = pt_attach(p);
	if (err) {
		free_netdev(dev);
		pt_memory_put(memory);
	}
	return err;
}

static void pt_remove(struct pci_dev *pdev)
{
	struct net_device *dev = pci_get_drvdata(pdev);
	struct ptnet *p = netdev_priv(dev);
	struct pt_memory *memory = p->memory;

	pt_files_part(p);
	unregister_netdev(dev);
	pt_part(p);
	pci_free_irq_vectors(pdev);
	free_netdev(dev);
	pt_memory_put(memory);
}

/* The memory of the CSB is put to other use when the next kernel runs. */
static void pt_shutdown(struct pci_dev *pdev)
{
	struct net_device *dev = pci_get_drvdata(pdev);

	pt_files_part(netdev_priv(dev));
	rtnl_lock();
	netif_device_detach(dev);
	dev_close(dev);
	rtnl_unlock();
	pt_part(netdev_priv(dev));
}

static int pt_suspend(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);
	struct ptnet *p = netdev_priv(dev);

	rtnl_lock();
	netif_device_detach(dev);
	pt_stop(p);
	pt_end(p);
	rtnl_unlock();
	pt_part(p);
	return 0;
}

static int pt_resume(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);
	struct ptnet *p = netdev_priv(dev);
	u32 header = p->header;
	int err;

	err = pt_introduce(p);
	if (err || p->header != header)
		return err ?: -EIO;
	rtnl_lock();
	if (netif_running(dev) || p->lent)
		err = pt_serve(p);
	if (!err) {
		if (p->serving && !p->lent)
			pt_start(p);
		netif_device_attach(dev);
	}
	rtnl_unlock();
	return err;
}

static DEFINE_SIMPLE_DEV_PM_OPS(pt_pm, pt_suspend, pt_resume);

static const struct pci_device_id pt_ids[] = { { PCI_DEVICE(PT_VENDOR, PT_NET) }, {} };
MODULE_DEVICE_TABLE(pci, pt_ids);

static struct pci_driver pt_driver = {
	.name = KBUILD_MODNAME,
	.id_table = pt_ids,
	.probe = pt_probe,
	.remove = pt_remove,
	.shutdown = pt_shutdown,
	.driver.pm = pm_sleep_ptr(&pt_pm),
};

/* Memory first, so that cards find theirs. */
static int __init pt_init(void)
{
	int err;

	pt_copy_init();
	err = pci_register_driver(&pt_memory_driver);
	if (err)
		return err;
	err = pci_register_driver(&pt_driver);
	if (err)
		pci_unregister_driver(&pt_memory_driver);
	else
		pt_files_init();
	return err;
}
module_init(pt_init);

static void __exit pt_exit(void)
{
	pt_files_exit();
	pci_unregister_driver(&pt_driver);
	pci_unregister_driver(&pt_memory_driver);
}
module_exit(pt_exit);

MODULE_DESCRIPTION("Network interface on a host port's own rings (ptnet)");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
