/* Prints the layouts that engine and C share: name, offset or size. */
#include <libnetmap.h>
#include <net/netmap_user.h>
#include <stddef.h>

#include "../../c/ring.h"
#include "../../c/vale.h"

#define OFFSET(type, member) printf(#type "." #member " %zu\n", offsetof(struct type, member))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))

int
main(void)
{
	SIZE(netmap_slot);
	OFFSET(netmap_slot, buf_idx);
	OFFSET(netmap_slot, len);
	OFFSET(netmap_slot, flags);
	OFFSET(netmap_slot, ptr);
	SIZE(netmap_ring);
	OFFSET(netmap_ring, buf_ofs);
	OFFSET(netmap_ring, num_slots);
	OFFSET(netmap_ring, nr_buf_size);
	OFFSET(netmap_ring, ringid);
	OFFSET(netmap_ring, dir);
	OFFSET(netmap_ring, head);
	OFFSET(netmap_ring, cur);
	OFFSET(netmap_ring, tail);
	OFFSET(netmap_ring, flags);
	OFFSET(netmap_ring, ts);
	OFFSET(netmap_ring, offset_mask);
	OFFSET(netmap_ring, buf_align);
	OFFSET(netmap_ring, sem);
	OFFSET(netmap_ring, slot);
	SIZE(netmap_if);
	OFFSET(netmap_if, ni_version);
	OFFSET(netmap_if, ni_flags);
	OFFSET(netmap_if, ni_tx_rings);
	OFFSET(netmap_if, ni_rx_rings);
	OFFSET(netmap_if, ni_bufs_head);
	OFFSET(netmap_if, ni_host_tx_rings);
	OFFSET(netmap_if, ni_host_rx_rings);
	OFFSET(netmap_if, ring_ofs);
	SIZE(ring_words);
	OFFSET(ring_words, client.head);
	OFFSET(ring_words, client.cur);
	OFFSET(ring_words, client.ticket);
	OFFSET(ring_words, engine.hwcur);
	OFFSET(ring_words, engine.hwtail);
	OFFSET(ring_words, engine.ticket);
	OFFSET(ring_words, engine.resets);
	OFFSET(ring_words, engine.reason);
	SIZE(nmreq_header);
	SIZE(nmreq_option);
	SIZE(nmreq_register);
	OFFSET(nmreq_register, nr_flags);
	SIZE(nmreq_port_info_get);
	SIZE(nmreq_port_hdr);
	SIZE(nmreq);
	SIZE(nmreq_vale_attach);
	SIZE(nmreq_vale_detach);
	SIZE(nmreq_vale_list);
	SIZE(nmreq_vale_newif);
	SIZE(nmreq_vale_polling);
	SIZE(nmreq_pools_info);
	OFFSET(nmreq_pools_info, nr_ring_pool_offset);
	OFFSET(nmreq_pools_info, nr_buf_pool_objsize);
	SIZE(nmreq_sync_kloop_start);
	SIZE(nmreq_opt_extmem);
	SIZE(nmreq_opt_csb);
	SIZE(nmreq_opt_sync_kloop_eventfds);
	SIZE(nmreq_opt_sync_kloop_mode);
	SIZE(nmreq_opt_offsets);
	SIZE(nm_csb_atok);
	SIZE(nm_csb_ktoa);
	SIZE(nm_ifreq);
	SIZE(nmem_d);
	SIZE(nmctx);
	SIZE(vale_ask);
	SIZE(vale_reply);
	SIZE(nm_desc);
	OFFSET(nm_desc, nifp);
	OFFSET(nm_desc, req);
	OFFSET(nm_desc, hdr);
	OFFSET(nm_desc, some_ring);
	OFFSET(nm_desc, msg);
	SIZE(nm_pkthdr);
	SIZE(nmport_d);
	OFFSET(nmport_d, fd);
	OFFSET(nmport_d, nifp);
	OFFSET(nmport_d, first_tx_ring);
	printf("NIOCTXSYNC %lu\n", (unsigned long)NIOCTXSYNC);
	printf("NIOCRXSYNC %lu\n", (unsigned long)NIOCRXSYNC);
	printf("NIOCCTRL %lu\n", (unsigned long)NIOCCTRL);
	printf("NIOCGINFO %lu\n", (unsigned long)NIOCGINFO);
	printf("NIOCCONFIG %lu\n", (unsigned long)NIOCCONFIG);
	printf("NIOCREGIF %lu\n", (unsigned long)NIOCREGIF);
	return 0;
}
