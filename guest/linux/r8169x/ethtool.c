// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What ethtool shows: how often what was done, whether there is a status block, the link, the rings. */
#include <linux/ethtool.h>

#include "r8169x.h"

static const char names[C_COUNTERS][ETH_GSTRING_LEN] = {
	[C_IRQS] = "interrupts", [C_POLLS] = "polls", [C_TX_DOORBELLS] = "tx_doorbells",
	[C_CSB_SILENT] = "tx_doorbells_saved_by_csb", [C_STOPS] = "tx_ring_full", [C_RX_NO_MEMORY] = "rx_no_memory",
};

static const char flags[][ETH_GSTRING_LEN] = { "csb" };

static int r_count(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? C_COUNTERS : set == ETH_SS_PRIV_FLAGS ? ARRAY_SIZE(flags) : -EOPNOTSUPP;
}

static void r_strings(struct net_device *dev, u32 set, u8 *to)
{
	if (set == ETH_SS_STATS)
		memcpy(to, names, sizeof(names));
	else if (set == ETH_SS_PRIV_FLAGS)
		memcpy(to, flags, sizeof(flags));
}

static void r_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *to)
{
	struct r8169x *r = netdev_priv(dev);

	memcpy(to, r->counters, sizeof(r->counters));
}

static u32 r_get_flags(struct net_device *dev)
{
	struct r8169x *r = netdev_priv(dev);

	return !!r->csb;
}

static void r_info(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
	strscpy(info->bus_info, dev_name(dev->dev.parent), sizeof(info->bus_info));
}

static int r_link(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	ethtool_link_ksettings_zero_link_mode(settings, supported);
	ethtool_link_ksettings_add_link_mode(settings, supported, 1000baseT_Full);
	settings->base.speed = SPEED_1000;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_TP;
	return 0;
}

static void r_ring_sizes(struct net_device *dev, struct ethtool_ringparam *to, struct kernel_ethtool_ringparam *k,
			 struct netlink_ext_ack *ack)
{
	struct r8169x *r = netdev_priv(dev);

	to->rx_max_pending = to->tx_max_pending = 1024;
	to->rx_pending = r->rx.size;
	to->tx_pending = r->tx.size;
}

const struct ethtool_ops r_ethtool_ops = {
	.get_drvinfo = r_info,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = r_link,
	.get_sset_count = r_count,
	.get_strings = r_strings,
	.get_ethtool_stats = r_stats,
	.get_priv_flags = r_get_flags,
	.get_ringparam = r_ring_sizes,
	.get_ts_info = ethtool_op_get_ts_info,
};
