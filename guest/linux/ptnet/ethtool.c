// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What ethtool shows: what each ring did and how often it told the host, rings, the link. */
#include <linux/ethtool.h>

#include "ptnet.h"

static const struct {
	const char *name;
	bool tx, rx;
} kinds[C_COUNTERS] = {
	[C_FRAMES] = { "packets", true, true },
	[C_BYTES] = { "bytes", true, true },
	[C_PUBLICATIONS] = { "publications", true, true },
	[C_KICKS] = { "kicks", true, true },
	[C_POLLS] = { "polls", true, true },
	[C_STOPS] = { "ring_full", true, false },
	[C_NO_MEMORY] = { "no_memory", false, true },
	[C_TOO_LONG] = { "too_long", true, true },
	[C_BAD_SLOT] = { "bad_slot", true, true },
	[C_BAD_HEADER] = { "bad_header", true, true },
	[C_BAD_TAIL] = { "bad_tail", true, true },
};

static bool pt_has(const struct pt_ring *r, int which)
{
	return r->rx ? kinds[which].rx : kinds[which].tx;
}

void pt_counters(const struct pt_ring *r, u64 *to)
{
	unsigned int start;
	int i;

	do {
		start = u64_stats_fetch_begin(&r->sync);
		for (i = 0; i < C_COUNTERS; i++)
			to[i] = u64_stats_read(&r->counters[i]);
	} while (u64_stats_fetch_retry(&r->sync, start));
}

static int pt_count_strings(struct net_device *dev, int set)
{
	struct ptnet *p = netdev_priv(dev);
	int strings = 0, i;
	u32 ring;

	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	for (ring = 0; ring < p->tx_rings + p->rx_rings; ring++) {
		strings++;
		for (i = 0; i < C_COUNTERS; i++)
			strings += pt_has(&p->rings[ring], i);
	}
	return strings;
}

static void pt_strings(struct net_device *dev, u32 set, u8 *to)
{
	struct ptnet *p = netdev_priv(dev);
	u32 ring;
	int i;

	if (set != ETH_SS_STATS)
		return;
	for (ring = 0; ring < p->tx_rings + p->rx_rings; ring++) {
		struct pt_ring *r = &p->rings[ring];
		const char *kind = r->rx ? "rx" : "tx";

		ethtool_sprintf(&to, "%s%u_interrupts", kind, r->index);
		for (i = 0; i < C_COUNTERS; i++)
			if (pt_has(r, i))
				ethtool_sprintf(&to, "%s%u_%s", kind, r->index, kinds[i].name);
	}
}

static void pt_values(struct net_device *dev, struct ethtool_stats *stats, u64 *to)
{
	struct ptnet *p = netdev_priv(dev);
	u64 counters[C_COUNTERS];
	u32 ring;
	int i;

	for (ring = 0; ring < p->tx_rings + p->rx_rings; ring++) {
		struct pt_ring *r = &p->rings[ring];

		*to++ = READ_ONCE(r->interrupts);
		pt_counters(r, counters);
		for (i = 0; i < C_COUNTERS; i++)
			if (pt_has(r, i))
				*to++ = counters[i];
	}
}

static void pt_info(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
	strscpy(info->bus_info, dev_name(dev->dev.parent), sizeof(info->bus_info));
}

static int pt_link_settings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	settings->base.speed = SPEED_UNKNOWN;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_OTHER;
	return 0;
}

static void pt_channels(struct net_device *dev, struct ethtool_channels *to)
{
	struct ptnet *p = netdev_priv(dev);

	to->max_tx = to->tx_count = p->tx_rings;
	to->max_rx = to->rx_count = p->rx_rings;
}

static void pt_ring_sizes(struct net_device *dev, struct ethtool_ringparam *to, struct kernel_ethtool_ringparam *k,
			  struct netlink_ext_ack *ack)
{
	struct ptnet *p = netdev_priv(dev);

	to->tx_max_pending = to->tx_pending = p->rings[0].size;
	to->rx_max_pending = to->rx_pending = p->rings[p->tx_rings].size;
}

const struct ethtool_ops pt_ethtool_ops = {
	.get_drvinfo = pt_info,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = pt_link_settings,
	.get_sset_count = pt_count_strings,
	.get_strings = pt_strings,
	.get_ethtool_stats = pt_values,
	.get_channels = pt_channels,
	.get_ringparam = pt_ring_sizes,
	.get_ts_info = ethtool_op_get_ts_info,
};
