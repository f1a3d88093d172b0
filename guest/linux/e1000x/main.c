// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * e1000x: a driver for emulated Intel 82540EM and 82574L cards that avoids leaving the guest.
 *
 * On a real card a register access costs a fraction of a microsecond; on an emulated one it may leave the guest and
 * cost a hundred times as much. So this driver touches as few registers as it can: on the 82574L no register at all
 * for a frame, and one for an interrupt. What it does for that can be switched, one by one (see the parameters), so
 * that each can be measured. ring.c has the frames, this file the device.
 *
 * What it does not do: jumbo frames, VLAN tags by the card, several queues, wake-up, real hardware's errata.
 */
#include <linux/etherdevice.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/rtnetlink.h>
#include <linux/version.h>

#include "e1000x.h"

static bool sc, lazy, polling;
static bool more = true, napi = true, csb = true;
static uint tx_ring = 512, rx_ring = 512, itr, poll_us = 100, share = 50;
module_param(sc, bool, 0444);
MODULE_PARM_DESC(sc, "send combining: no doorbell while a completion interrupt is due (0)");
module_param(lazy, bool, 0444);
MODULE_PARM_DESC(lazy, "lazy completion: the sender cleans up, no interrupts for it (0)");
module_param(more, bool, 0444);
MODULE_PARM_DESC(more, "one doorbell for what the stack sends at once (1)");
module_param(napi, bool, 0444);
MODULE_PARM_DESC(napi, "poll under load (1); 0: every interrupt by itself");
module_param(csb, bool, 0444);
MODULE_PARM_DESC(csb, "use the communication status block if the device has one (1)");
module_param(polling, bool, 0444);
MODULE_PARM_DESC(polling, "device polling: a timer instead of interrupts (0)");
module_param(poll_us, uint, 0444);
MODULE_PARM_DESC(poll_us, "device polling: microseconds between polls (100)");
module_param(share, uint, 0444);
MODULE_PARM_DESC(share, "device polling: percent of a processor at most (50)");
module_param(itr, uint, 0444);
MODULE_PARM_DESC(itr, "least gap between interrupts in units of 256 ns (0: the host's choice)");
module_param(tx_ring, uint, 0444);
MODULE_PARM_DESC(tx_ring, "transmit descriptors, 64 to 4096 (512)");
module_param(rx_ring, uint, 0444);
MODULE_PARM_DESC(rx_ring, "receive descriptors, 64 to 4096 (512)");

static void x_reset(struct e1000x *x)
{
	x_set(x, R_IMC, ~0u);
	x_set(x, R_RCTL, 0);
	x_set(x, R_TCTL, 0);
	x_set(x, R_CTRL, x_get(x, R_CTRL) | CTRL_RST);
	/* A read arrives after the writes before it. */
	x_get(x, R_STATUS);
	usleep_range(1000, 2000);
	x_set(x, R_IMC, ~0u);
	x_get(x, R_ICR);
}

void x_moderate(struct e1000x *x)
{
	x_set(x, x->msix ? R_EITR(0) : R_ITR, x->itr);
}

static void x_filter(struct net_device *dev)
{
	struct e1000x *x = netdev_priv(dev);
	u32 rctl = RCTL_EN | RCTL_BAM | RCTL_SECRC;

	if (dev->flags & IFF_PROMISC)
		rctl |= RCTL_UPE | RCTL_MPE;
	else if (dev->flags & IFF_ALLMULTI || !netdev_mc_empty(dev))
		rctl |= RCTL_MPE;
	x_set(x, R_RCTL, rctl);
}

static void x_station(struct e1000x *x)
{
	const u8 *mac = x->dev->dev_addr;

	x_set(x, R_RAL0, mac[0] | mac[1] << 8 | mac[2] << 16 | (u32)mac[3] << 24);
	x_set(x, R_RAH0, mac[4] | mac[5] << 8 | BIT(31));
}

/* Message 0 is the rings', message 1 all other causes'. */
static void x_route(struct e1000x *x)
{
	if (!x->msix)
		return;
	x_set(x, R_IVAR, 8 | 8 << 8 | 9 << 16);
	x_set(x, R_EIAC, INT_RXQ0 | INT_TXQ0);
	x_set(x, R_CTRL_EXT, (x_get(x, R_CTRL_EXT) & ~CTRL_EXT_IAME) | CTRL_EXT_EIAME | CTRL_EXT_PBA);
}

/* Messages of the rings: the device has cleared and masked the causes itself, so no register is touched. */
static irqreturn_t x_ring_message(int irq, void *data)
{
	struct e1000x *x = data;

	x->counters[C_IRQS]++;
	if (!x_is(x, X_NAPI))
		return IRQ_WAKE_THREAD;
	napi_schedule_irqoff(&x->napi);
	return IRQ_HANDLED;
}

/* Without NAPI: what is there now is served, and then the next interrupt is asked for. */
static irqreturn_t x_ring_thread(int irq, void *data)
{
	struct e1000x *x = data;

	local_bh_disable();
	napi_schedule(&x->napi);
	local_bh_enable();
	return IRQ_HANDLED;
}

static irqreturn_t x_other_message(int irq, void *data)
{
	struct e1000x *x = data;

	x->counters[C_IRQS]++;
	x_get(x, R_ICR);
	if (READ_ONCE(x->runs)) {
		mod_delayed_work(system_wq, &x->watch, 0);
		x_set(x, R_IMS, INT_OTHER | INT_LSC);
	}
	return IRQ_HANDLED;
}

static irqreturn_t x_pin(int irq, void *data)
{
	struct e1000x *x = data;
	u32 causes = x_get(x, R_ICR);

	if (!causes)
		return IRQ_NONE;
	x->counters[C_IRQS]++;
	if (causes & INT_LSC && READ_ONCE(x->runs))
		mod_delayed_work(system_wq, &x->watch, 0);
	if (!(causes & ~INT_LSC))
		return IRQ_HANDLED;
	x_set(x, R_IMC, ~(u32)INT_LSC);
	if (!x_is(x, X_NAPI))
		return IRQ_WAKE_THREAD;
	napi_schedule_irqoff(&x->napi);
	return IRQ_HANDLED;
}

static enum hrtimer_restart x_tick(struct hrtimer *timer)
{
	struct e1000x *x = container_of(timer, struct e1000x, timer);

	x->counters[C_TIMER_TICKS]++;
	x->poll_began = ktime_get();
	napi_schedule(&x->napi);
	return HRTIMER_NORESTART;
}

/* The link, when something is heard of it and every two seconds; and a ring that lacks buffers, for which memory was missing. */
static void x_watch(struct work_struct *work)
{
	struct e1000x *x = container_of(work, struct e1000x, watch.work);
	bool up = x_get(x, R_STATUS) & STATUS_LU;

	if (up != netif_carrier_ok(x->dev)) {
		netdev_info(x->dev, "link is %s\n", up ? "up" : "down");
		if (up) {
			netif_carrier_on(x->dev);
			netif_wake_queue(x->dev);
		} else {
			netif_carrier_off(x->dev);
		}
	}
	/* Device polling fills it anyway. */
	if (!x_is(x, X_POLLING)) {
		local_bh_disable();
		napi_schedule(&x->napi);
		local_bh_enable();
	}
	schedule_delayed_work(&x->watch, 2 * HZ);
}

static void x_csb_on(struct e1000x *x, bool on)
{
	if (!x->csb)
		return;
	if (on) {
		memset(x->csb, 0, CSB_SIZE);
		x->csb->guest_need_txkick = !x_is(x, X_LAZY) || x_is(x, X_SC);
		x->csb->guest_need_rxkick = 1;
		x->csb->host_need_txkick = 1;
		x->csb->host_txcycles_lim = 1;
		x->csb->host_rxkick_at = CSB_NEVER;
		x->csb->guest_csb_on = 1;
		x_set(x, R_CSBAH, upper_32_bits(x->csb_dma));
		x_set(x, R_CSBAL, lower_32_bits(x->csb_dma));
	} else {
		WRITE_ONCE(x->csb->guest_csb_on, 0);
		/* The low half says whether there is one: first away, last there. */
		x_set(x, R_CSBAL, 0);
		x_set(x, R_CSBAH, 0);
	}
}

static void x_start(struct e1000x *x)
{
	x_reset(x);
	x_set(x, R_CTRL, x_get(x, R_CTRL) | CTRL_SLU);
	x_station(x);
	if (x->is_82574)
		x_set(x, R_RFCTL, 0);
	x_set(x, R_TIPG, TIPG_COPPER);
	x_set(x, R_RXCSUM, RXCSUM_IPOFL | RXCSUM_TUOFL);
	x_route(x);
	x_moderate(x);
	x_csb_on(x, true);
	x_rings_start(x);
	x_set(x, R_TCTL, TCTL_EN | TCTL_PSP | TCTL_FULL);
	x_filter(x->dev);
	/* A kick for the host that saw the tails before the receiver was on. */
	x_set(x, R_RX + RING_TAIL, x->rx.tail);
	napi_enable(&x->napi);
	WRITE_ONCE(x->runs, true);
	if (x_is(x, X_POLLING)) {
		hrtimer_start(&x->timer, ns_to_ktime(x->poll_ns), HRTIMER_MODE_REL_SOFT);
	} else {
		netif_stop_queue(x->dev);
		x_set(x, R_IMS, x_ring_causes(x) | INT_LSC | (x->msix ? INT_OTHER : 0));
	}
	netif_start_queue(x->dev);
	schedule_delayed_work(&x->watch, 0);
}

static void x_stop(struct e1000x *x)
{
	/* An interrupt that is on its way starts no work. */
	WRITE_ONCE(x->runs, false);
	x_set(x, R_IMC, ~0u);
	synchronize_irq(pci_irq_vector(x->pdev, 0));
	if (x->msix)
		synchronize_irq(pci_irq_vector(x->pdev, 1));
	cancel_delayed_work_sync(&x->watch);
	netif_tx_disable(x->dev);
	netif_carrier_off(x->dev);
	if (x_is(x, X_POLLING))
		hrtimer_cancel(&x->timer);
	napi_disable(&x->napi);
	/* A poll that ended meanwhile may have set it again. */
	if (x_is(x, X_POLLING))
		hrtimer_cancel(&x->timer);
	/*
	 * The reset first: without the block the tails in the registers count again, and those stand where the last
	 * doorbell left them. A device that is still on would take old descriptors for new ones.
	 */
	x_reset(x);
	x_csb_on(x, false);
	x_rings_drop(x);
}

static int x_irqs(struct e1000x *x)
{
	struct pci_dev *pdev = x->pdev;
	const char *name = x->dev->name;
	int err;

	if (!x->msix)
		return request_threaded_irq(pci_irq_vector(pdev, 0), x_pin, x_ring_thread, IRQF_SHARED, name, x);
	err = request_threaded_irq(pci_irq_vector(pdev, 0), x_ring_message, x_ring_thread, 0, name, x);
	if (err)
		return err;
	err = request_irq(pci_irq_vector(pdev, 1), x_other_message, 0, name, x);
	if (err)
		free_irq(pci_irq_vector(pdev, 0), x);
	return err;
}

static void x_free_irqs(struct e1000x *x)
{
	free_irq(pci_irq_vector(x->pdev, 0), x);
	if (x->msix)
		free_irq(pci_irq_vector(x->pdev, 1), x);
}

static int x_open(struct net_device *dev)
{
	struct e1000x *x = netdev_priv(dev);
	int err = x_rings_alloc(x, tx_ring, rx_ring);

	if (err)
		return err;
	x_reset(x);
	err = x_irqs(x);
	if (err) {
		x_rings_free(x);
		return err;
	}
	x_start(x);
	return 0;
}

static int x_close(struct net_device *dev)
{
	struct e1000x *x = netdev_priv(dev);

	x_stop(x);
	x_free_irqs(x);
	x_rings_free(x);
	return 0;
}

static int x_set_mac(struct net_device *dev, void *address)
{
	int err = eth_mac_addr(dev, address);

	if (!err)
		x_station(netdev_priv(dev));
	return err;
}

static const struct net_device_ops x_ops = {
	.ndo_open = x_open,
	.ndo_stop = x_close,
	.ndo_start_xmit = x_xmit,
	.ndo_set_rx_mode = x_filter,
	.ndo_set_mac_address = x_set_mac,
	.ndo_validate_addr = eth_validate_addr,
};

static void x_read_mac(struct e1000x *x)
{
	u32 low = x_get(x, R_RAL0), high = x_get(x, R_RAH0);
	u8 mac[ETH_ALEN] = { low, low >> 8, low >> 16, low >> 24, high, high >> 8 };

	if (is_valid_ether_addr(mac))
		eth_hw_addr_set(x->dev, mac);
	else
		eth_hw_addr_random(x->dev);
}

static void x_switches(struct e1000x *x)
{
	const bool on[X_SWITCHES] = {
		[X_SC] = sc, [X_LAZY] = lazy, [X_MORE] = more, [X_NAPI] = napi || polling,
		[X_CSB] = csb && x->pdev->subsystem_device == CSB_DEVICE, [X_POLLING] = polling,
	};
	int i;

	for (i = 0; i < X_SWITCHES; i++)
		__assign_bit(i, &x->switches, on[i]);
	x->itr = min(itr, 0xffffu);
	x->poll_ns = max(poll_us, 10u) * NSEC_PER_USEC;
	x->share = clamp(share, 1u, 100u);
}

static u32 x_ring_size(uint asked)
{
	return clamp_t(u32, round_up(asked, 8), 64, 4096);
}

static int x_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct net_device *dev;
	struct e1000x *x;
	int err, vectors;

	tx_ring = x_ring_size(tx_ring);
	rx_ring = x_ring_size(rx_ring);
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = pcim_iomap_regions(pdev, BIT(0), KBUILD_MODNAME);
	if (err)
		return err;
	dev = devm_alloc_etherdev(&pdev->dev, sizeof(*x));
	if (!dev)
		return -ENOMEM;
	SET_NETDEV_DEV(dev, &pdev->dev);
	pci_set_drvdata(pdev, dev);
	x = netdev_priv(dev);
	x->dev = dev;
	x->pdev = pdev;
	x->regs = pcim_iomap_table(pdev)[0];
	x->is_82574 = pdev->device == 0x10d3;
	spin_lock_init(&x->tx_lock);
	INIT_DELAYED_WORK(&x->watch, x_watch);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&x->timer, x_tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
#else
	hrtimer_init(&x->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	x->timer.function = x_tick;
#endif
	pci_set_master(pdev);
	x_reset(x);
	/* An 82540 that sits on no PCI-X bus takes 32 bits. */
	err = dma_set_mask_and_coherent(&pdev->dev, x->is_82574 || x_get(x, R_STATUS) & STATUS_PCIX ?
						    DMA_BIT_MASK(64) : DMA_BIT_MASK(32));
	if (err)
		return err;
	vectors = x->is_82574 ? pci_alloc_irq_vectors(pdev, 2, 2, PCI_IRQ_MSIX) : 0;
	x->msix = vectors == 2;
	if (!x->msix) {
		vectors = pci_alloc_irq_vectors(pdev, 1, 1, 1 /* the pin */);
		if (vectors < 0)
			return vectors;
	}
	x_switches(x);
	if (x_is(x, X_CSB)) {
		x->csb = dmam_alloc_coherent(&pdev->dev, CSB_SIZE, &x->csb_dma, GFP_KERNEL);
		if (!x->csb)
			clear_bit(X_CSB, &x->switches);
	}
	x_read_mac(x);
	dev->netdev_ops = &x_ops;
	dev->ethtool_ops = &x_ethtool_ops;
	dev->hw_features = NETIF_F_SG | NETIF_F_IP_CSUM | NETIF_F_IPV6_CSUM | NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_RXCSUM;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	dev->vlan_features = dev->hw_features;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = ETH_DATA_LEN;
	netif_carrier_off(dev);
	netif_napi_add(dev, &x->napi, x_poll);
	err = register_netdev(dev);
	if (err) {
		netif_napi_del(&x->napi);
		pci_free_irq_vectors(pdev);
		return err;
	}
	netdev_info(dev, "%s with %s%s%s\n", x->is_82574 ? "82574L" : "82540EM", x->msix ? "messages" : "its pin",
		    x->csb ? ", CSB" : "", x_is(x, X_POLLING) ? ", polled" : "");
	return 0;
}

static void x_remove(struct pci_dev *pdev)
{
	struct net_device *dev = pci_get_drvdata(pdev);
	struct e1000x *x = netdev_priv(dev);

	unregister_netdev(dev);
	netif_napi_del(&x->napi);
	x_reset(x);
	pci_free_irq_vectors(pdev);
}

static int x_suspend(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);

	rtnl_lock();
	netif_device_detach(dev);
	if (netif_running(dev))
		x_stop(netdev_priv(dev));
	rtnl_unlock();
	return 0;
}

static int x_resume(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);

	rtnl_lock();
	if (netif_running(dev))
		x_start(netdev_priv(dev));
	netif_device_attach(dev);
	rtnl_unlock();
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(x_pm, x_suspend, x_resume);

static const struct pci_device_id x_ids[] = { { PCI_DEVICE(0x8086, 0x100e) }, { PCI_DEVICE(0x8086, 0x10d3) }, {} };
MODULE_DEVICE_TABLE(pci, x_ids);

static struct pci_driver x_driver = {
	.name = KBUILD_MODNAME,
	.id_table = x_ids,
	.probe = x_probe,
	.remove = x_remove,
	.driver.pm = pm_sleep_ptr(&x_pm),
};
module_pci_driver(x_driver);

MODULE_DESCRIPTION("Emulated Intel 82540EM and 82574L without leaving the guest");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
