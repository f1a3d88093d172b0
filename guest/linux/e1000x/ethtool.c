// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What ethtool shows: the switches as private flags, how often what was done, the link, moderation. */
#include <linux/ethtool.h>
#include <linux/rtnetlink.h>

#include "e1000x.h"

static const char names[C_COUNTERS][ETH_GSTRING_LEN] = {
	[C_IRQS] = "interrupts", [C_POLLS] = "polls", [C_TX_DOORBELLS] = "tx_doorbells",
	[C_TX_DEFERRED] = "tx_doorbells_deferred", [C_TX_CLEANED_BY_SENDER] = "tx_cleaned_by_sender",
	[C_RX_DOORBELLS] = "rx_doorbells", [C_STOPS] = "tx_ring_full", [C_CSB_SILENT] = "tx_doorbells_saved_by_csb",
	[C_RX_NO_MEMORY] = "rx_no_memory", [C_TIMER_TICKS] = "timer_ticks",
};

static const char flags[X_SWITCHES][ETH_GSTRING_LEN] = {
	[X_SC] = "send-combining", [X_LAZY] = "lazy-completion", [X_MORE] = "xmit-more", [X_NAPI] = "napi",
	[X_CSB] = "csb", [X_POLLING] = "device-polling",
};

/* Those that can be changed while the card runs. */
#define CHANGEABLE (BIT(X_SC) | BIT(X_LAZY) | BIT(X_MORE))

static int x_count(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? C_COUNTERS : set == ETH_SS_PRIV_FLAGS ? X_SWITCHES : -EOPNOTSUPP;
}

static void x_strings(struct net_device *dev, u32 set, u8 *to)
{
	if (set == ETH_SS_STATS)
		memcpy(to, names, sizeof(names));
	else if (set == ETH_SS_PRIV_FLAGS)
		memcpy(to, flags, sizeof(flags));
}

static void x_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *to)
{
	struct e1000x *x = netdev_priv(dev);

	memcpy(to, x->counters, sizeof(x->counters));
}

static u32 x_get_flags(struct net_device *dev)
{
	struct e1000x *x = netdev_priv(dev);

	return x->switches;
}

static int x_set_flags(struct net_device *dev, u32 flags)
{
	struct e1000x *x = netdev_priv(dev);
	unsigned long changed = x->switches ^ flags;
	int i;

	if (changed & ~(unsigned long)CHANGEABLE)
		return -EOPNOTSUPP;
	spin_lock_bh(&x->tx_lock);
	for_each_set_bit(i, &changed, X_SWITCHES)
		change_bit(i, &x->switches);
	/* What an earlier rule held back goes now, and interrupts for completions may be wanted from now on. */
	if (netif_running(dev)) {
		x_tx_kick(x);
		if (!x_is(x, X_POLLING))
			x_set(x, R_IMS, x_ring_causes(x));
		if (x->csb)
			WRITE_ONCE(x->csb->guest_need_txkick, !x_is(x, X_LAZY) || x_is(x, X_SC));
	}
	spin_unlock_bh(&x->tx_lock);
	return 0;
}

static void x_info(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
	strscpy(info->bus_info, dev_name(dev->dev.parent), sizeof(info->bus_info));
}

static int x_link(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	ethtool_link_ksettings_zero_link_mode(settings, supported);
	ethtool_link_ksettings_add_link_mode(settings, supported, 1000baseT_Full);
	settings->base.speed = SPEED_1000;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_TP;
	return 0;
}

static int x_get_coalesce(struct net_device *dev, struct ethtool_coalesce *to, struct kernel_ethtool_coalesce *k,
			  struct netlink_ext_ack *ack)
{
	struct e1000x *x = netdev_priv(dev);

	to->rx_coalesce_usecs = x->itr * 256 / 1000;
	return 0;
}

static int x_set_coalesce(struct net_device *dev, struct ethtool_coalesce *from, struct kernel_ethtool_coalesce *k,
			  struct netlink_ext_ack *ack)
{
	struct e1000x *x = netdev_priv(dev);

	if (from->rx_coalesce_usecs > 16000)
		return -EINVAL;
	x->itr = from->rx_coalesce_usecs * 1000 / 256;
	if (netif_running(dev))
		x_moderate(x);
	return 0;
}

static void x_ring_sizes(struct net_device *dev, struct ethtool_ringparam *to, struct kernel_ethtool_ringparam *k,
			 struct netlink_ext_ack *ack)
{
	struct e1000x *x = netdev_priv(dev);

	to->rx_max_pending = to->tx_max_pending = 4096;
	to->rx_pending = x->rx.size;
	to->tx_pending = x->tx.size;
}

const struct ethtool_ops x_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS,
	.get_drvinfo = x_info,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = x_link,
	.get_sset_count = x_count,
	.get_strings = x_strings,
	.get_ethtool_stats = x_stats,
	.get_priv_flags = x_get_flags,
	.set_priv_flags = x_set_flags,
	.get_coalesce = x_get_coalesce,
	.set_coalesce = x_set_coalesce,
	.get_ringparam = x_ring_sizes,
	.get_ts_info = ethtool_op_get_ts_info,
};
