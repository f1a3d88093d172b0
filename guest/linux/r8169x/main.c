// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * r8169x: a driver for sidecore's RTL8169 that leaves the guest as rarely as it can.
 *
 * All registers of this card lie in 256 bytes, so none can be mapped into a guest, and each access leaves it. A driver
 * that shares a status block (CSB) with the host touches no register to send, and two for an interrupt: one that tells
 * the causes, and one that clears them. Without the block it does what every driver of this card does: the doorbell for
 * each batch, and four accesses for an interrupt. The switch is there to measure that. ring.c has the frames, this file
 * the device.
 *
 * What it does not do: jumbo frames, VLAN tags by the card, offloads over IPv6, wake-up, the PHY, real cards' errata.
 */
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/interrupt.h>
#include <linux/iopoll.h>
#include <linux/module.h>
#include <linux/rtnetlink.h>

#include "r8169x.h"

static bool csb = true;
static uint tx_ring = 256, rx_ring = 256;
module_param(csb, bool, 0444);
MODULE_PARM_DESC(csb, "use the communication status block if the card has one (1)");
module_param(tx_ring, uint, 0444);
MODULE_PARM_DESC(tx_ring, "transmit descriptors, 64 to 1024 (256)");
module_param(rx_ring, uint, 0444);
MODULE_PARM_DESC(rx_ring, "receive descriptors, 64 to 1024 (256)");

static int r_reset(struct r8169x *r)
{
	u8 state;

	writew(0, r->regs + R_IMR);
	writeb(CR_RST, r->regs + R_CR);
	return readb_poll_timeout(r->regs + R_CR, state, !(state & CR_RST), 20, 20000);
}

static void r_filter(struct net_device *dev)
{
	struct r8169x *r = netdev_priv(dev);
	bool all = dev->flags & (IFF_PROMISC | IFF_ALLMULTI) || !netdev_mc_empty(dev);
	u32 groups = all ? ~0u : 0;

	writel(groups, r->regs + R_MAR);
	writel(groups, r->regs + R_MAR + 4);
	writel(RCR_VALUE | RCR_APM | RCR_AB | RCR_AM | (dev->flags & IFF_PROMISC ? RCR_AAP : 0), r->regs + R_RCR);
}

static void r_station(struct r8169x *r)
{
	const u8 *mac = r->dev->dev_addr;

	writeb(CR_CONFIG, r->regs + R_9346CR);
	writel(mac[4] | mac[5] << 8, r->regs + R_IDR + 4);
	writel(mac[0] | mac[1] << 8 | mac[2] << 16 | (u32)mac[3] << 24, r->regs + R_IDR);
	writeb(0, r->regs + R_9346CR);
}

static void r_csb_on(struct r8169x *r, bool on)
{
	if (!r->csb)
		return;
	if (on) {
		memset(r->csb, 0, CSB_SIZE);
		r->csb->guest_need_rxkick = 1;
		r->csb->host_need_txkick = 1;
		r->csb->host_rxkick_at = CSB_NEVER;
		r->csb->guest_csb_on = 1;
		writel(upper_32_bits(r->csb_dma), r->regs + R_CSBAH);
		writel(lower_32_bits(r->csb_dma), r->regs + R_CSBAL);
	} else {
		WRITE_ONCE(r->csb->guest_csb_on, 0);
		writel(0, r->regs + R_CSBAL);
	}
}

static irqreturn_t r_interrupt(int irq, void *data)
{
	struct r8169x *r = data;
	u16 causes = readw(r->regs + R_ISR);

	if (!(causes & READ_ONCE(r->mask)))
		return IRQ_NONE;
	r->counters[C_IRQS]++;
	/* With a CSB the poll says in memory that it wants no more of them. */
	if (!r->csb && causes & (INT_ROK | INT_TOK))
		writew(INT_LINK, r->regs + R_IMR);
	writew(causes, r->regs + R_ISR);
	if (causes & INT_LINK)
		mod_delayed_work(system_wq, &r->watch, 0);
	if (causes & (INT_ROK | INT_TOK))
		napi_schedule_irqoff(&r->napi);
	return IRQ_HANDLED;
}

/* The link, when something is heard of it and every two seconds; and a ring that lacks buffers, for which memory was missing. */
static void r_watch(struct work_struct *work)
{
	struct r8169x *r = container_of(work, struct r8169x, watch.work);
	bool up = readb(r->regs + R_PHYSTATUS) & PHY_LINK;

	if (up != netif_carrier_ok(r->dev)) {
		netdev_info(r->dev, "link is %s\n", up ? "up" : "down");
		if (up) {
			netif_carrier_on(r->dev);
			netif_wake_queue(r->dev);
		} else {
			netif_carrier_off(r->dev);
		}
	}
	local_bh_disable();
	napi_schedule(&r->napi);
	local_bh_enable();
	schedule_delayed_work(&r->watch, 2 * HZ);
}

static int r_start(struct r8169x *r)
{
	int err = r_reset(r);

	if (err)
		return err;
	r_station(r);
	r_csb_on(r, true);
	r_rings_start(r);
	writew(2047, r->regs + R_RMS);
	writew(CPCR_DAC | CPCR_RXCSUM, r->regs + R_CPCR);
	writew(0, r->regs + R_MITIGATION);
	writeb(CR_TE | CR_RE, r->regs + R_CR);
	writel(TCR_VALUE, r->regs + R_TCR);
	r_filter(r->dev);
	napi_enable(&r->napi);
	r->mask = INT_ROK | INT_TOK | INT_LINK;
	writew(r->mask, r->regs + R_IMR);
	netif_start_queue(r->dev);
	r->runs = true;
	schedule_delayed_work(&r->watch, 0);
	return 0;
}

static void r_stop(struct r8169x *r)
{
	/* It does not run if it could not be resumed. */
	if (!r->runs)
		return;
	r->runs = false;
	/* An interrupt that is on its way finds no cause of its own, and starts no work. */
	WRITE_ONCE(r->mask, 0);
	writew(0, r->regs + R_IMR);
	synchronize_irq(pci_irq_vector(r->pdev, 0));
	cancel_delayed_work_sync(&r->watch);
	netif_tx_disable(r->dev);
	netif_carrier_off(r->dev);
	napi_disable(&r->napi);
	r_reset(r);
	r_csb_on(r, false);
	r_rings_drop(r);
}

static int r_open(struct net_device *dev)
{
	struct r8169x *r = netdev_priv(dev);
	int err = r_rings_alloc(r, tx_ring, rx_ring);

	if (err)
		return err;
	err = request_irq(pci_irq_vector(r->pdev, 0), r_interrupt, IRQF_SHARED, dev->name, r);
	if (!err) {
		err = r_start(r);
		if (!err)
			return 0;
		free_irq(pci_irq_vector(r->pdev, 0), r);
	}
	r_rings_free(r);
	return err;
}

static int r_close(struct net_device *dev)
{
	struct r8169x *r = netdev_priv(dev);

	r_stop(r);
	free_irq(pci_irq_vector(r->pdev, 0), r);
	r_rings_free(r);
	return 0;
}

static int r_set_mac(struct net_device *dev, void *address)
{
	int err = eth_mac_addr(dev, address);

	if (!err)
		r_station(netdev_priv(dev));
	return err;
}

/* What the card cannot cut, the stack does. */
static netdev_features_t r_features_check(struct sk_buff *skb, struct net_device *dev, netdev_features_t features)
{
	if (skb_shinfo(skb)->gso_size > TXD_MSS)
		features &= ~NETIF_F_TSO;
	return vlan_features_check(skb, features);
}

static const struct net_device_ops r_ops = {
	.ndo_open = r_open,
	.ndo_stop = r_close,
	.ndo_start_xmit = r_xmit,
	.ndo_set_rx_mode = r_filter,
	.ndo_set_mac_address = r_set_mac,
	.ndo_features_check = r_features_check,
	.ndo_validate_addr = eth_validate_addr,
};

static void r_read_mac(struct r8169x *r)
{
	u32 low = readl(r->regs + R_IDR), high = readl(r->regs + R_IDR + 4);
	u8 mac[ETH_ALEN] = { low, low >> 8, low >> 16, low >> 24, high, high >> 8 };

	if (is_valid_ether_addr(mac))
		eth_hw_addr_set(r->dev, mac);
	else
		eth_hw_addr_random(r->dev);
}

static int r_attach(struct r8169x *r)
{
	struct net_device *dev = r->dev;
	int err;

	/* The pin, which is the only interrupt that this part has. */
	err = pci_alloc_irq_vectors(r->pdev, 1, 1, 1);
	if (err < 0)
		return err;
	r_read_mac(r);
	dev->netdev_ops = &r_ops;
	dev->ethtool_ops = &r_ethtool_ops;
	dev->hw_features = NETIF_F_SG | NETIF_F_IP_CSUM | NETIF_F_TSO | NETIF_F_RXCSUM;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = ETH_DATA_LEN;
	netif_carrier_off(dev);
	netif_napi_add(dev, &r->napi, r_poll);
	err = register_netdev(dev);
	if (err) {
		netif_napi_del(&r->napi);
		pci_free_irq_vectors(r->pdev);
	}
	return err;
}

static int r_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct net_device *dev;
	struct r8169x *r;
	int err;

	tx_ring = clamp_t(uint, tx_ring, 64, 1024);
	rx_ring = clamp_t(uint, rx_ring, 64, 1024);
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = pcim_iomap_regions(pdev, BIT(R_BAR), KBUILD_MODNAME);
	if (err)
		return err;
	if (pci_resource_len(pdev, R_BAR) < R_SPACE)
		return dev_err_probe(&pdev->dev, -EINVAL, "BAR %u is too short\n", R_BAR);
	dev = devm_alloc_etherdev(&pdev->dev, sizeof(*r));
	if (!dev)
		return -ENOMEM;
	SET_NETDEV_DEV(dev, &pdev->dev);
	pci_set_drvdata(pdev, dev);
	r = netdev_priv(dev);
	r->dev = dev;
	r->pdev = pdev;
	r->regs = pcim_iomap_table(pdev)[R_BAR];
	spin_lock_init(&r->tx_lock);
	INIT_DELAYED_WORK(&r->watch, r_watch);
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	pci_set_master(pdev);
	err = r_reset(r);
	if (err)
		return dev_err_probe(&pdev->dev, err, "the reset does not end\n");
	if (csb && pdev->subsystem_device == CSB_DEVICE) {
		r->csb = dmam_alloc_coherent(&pdev->dev, CSB_SIZE, &r->csb_dma, GFP_KERNEL);
		if (!r->csb)
			return -ENOMEM;
	}
	err = r_attach(r);
	if (!err)
		netdev_info(dev, "RTL8169%s\n", r->csb ? ", CSB" : "");
	return err;
}

static void r_remove(struct pci_dev *pdev)
{
	struct net_device *dev = pci_get_drvdata(pdev);
	struct r8169x *r = netdev_priv(dev);

	unregister_netdev(dev);
	netif_napi_del(&r->napi);
	pci_free_irq_vectors(pdev);
}

/* The memory of the rings is put to other use when the next kernel runs. */
static void r_shutdown(struct pci_dev *pdev)
{
	struct net_device *dev = pci_get_drvdata(pdev);

	rtnl_lock();
	netif_device_detach(dev);
	dev_close(dev);
	rtnl_unlock();
}

static int r_suspend(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);

	rtnl_lock();
	netif_device_detach(dev);
	if (netif_running(dev))
		r_stop(netdev_priv(dev));
	rtnl_unlock();
	return 0;
}

static int r_resume(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);
	int err = 0;

	rtnl_lock();
	if (netif_running(dev))
		err = r_start(netdev_priv(dev));
	if (!err)
		netif_device_attach(dev);
	rtnl_unlock();
	return err;
}

static DEFINE_SIMPLE_DEV_PM_OPS(r_pm, r_suspend, r_resume);

static const struct pci_device_id r_ids[] = { { PCI_DEVICE(0x10ec, 0x8169) }, {} };
MODULE_DEVICE_TABLE(pci, r_ids);

static struct pci_driver r_driver = {
	.name = KBUILD_MODNAME,
	.id_table = r_ids,
	.probe = r_probe,
	.remove = r_remove,
	.shutdown = r_shutdown,
	.driver.pm = pm_sleep_ptr(&r_pm),
};
module_pci_driver(r_driver);

MODULE_DESCRIPTION("sidecore's RTL8169 without leaving the guest");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
