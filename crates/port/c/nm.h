/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Inside libnetmap: what a file descriptor of /dev/netmap is in the kernel. */
#ifndef SIDECORE_NM_H
#define SIDECORE_NM_H

#include <net/netmap.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

#include "ring.h"

/* Flags of a monitor. */
#define NM_MONITORS (NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON)

/* What the kernel remembers of a ring (netmap calls it the kring): the indices as of the last sync. */
struct nm_kring {
	struct netmap_ring *ring;
	struct ring_link *link;
	const uint32_t *version; /* of the port's interface: 0 if the memory was taken away with its port */
	uint32_t rhead, rcur, rtail;
	int users, exclusive;
	atomic_flag busy; /* a thread syncs it: others leave it alone, as in netmap */
};

/* An attached port; descriptors of this process share it. */
struct nm_port {
	struct nm_port *next;
	char name[NETMAP_REQ_IFNAMSIZ];
	int users;
	struct ring_port ring;
	struct netmap_if *nifp;
	struct nm_kring tx[RING_MAX], rx[RING_MAX];
	uint32_t spare; /* bits of the spare interfaces in use */
	uint32_t rest;  /* first of the extra buffers that were not asked for, or 0 */
};

/* An open descriptor of /dev/netmap: bound to rings of a port, or not yet. */
struct nm_file {
	struct nm_port *port; /* NULL: not bound */
	_Atomic int refs;     /* descriptors of this file, and the loop that serves its CSB */
	uint16_t first_tx, last_tx, first_rx, last_rx; /* last is one behind; none if first == last */
	int no_tx_poll, exclusive;
	int spare; /* which spare interface it has, or -1 */
	int set;   /* the epoll set of all that can wake its rings */
	int post;  /* where its binding is written down for a process that gets the descriptor; see pass.c */
	/* The CSB, if there is one: then it takes the place of syncs. */
	struct nm_csb_atok *atok;
	struct nm_csb_ktoa *ktoa;
	_Atomic int looping, stopping;
};

struct nm_file *nm_file(int fd);
/* The same; one that another process has bound is taken over. Costs a system call if there is none. */
struct nm_file *nm_file_or_passed(int fd);

/* What is written down for the receivers of a descriptor, or not any more; a port of what is found there, whose rings the file
 * gets, or NULL. */
void nm_post(const struct nm_file *f);
void nm_withdraw(const struct nm_file *f, int fd);
struct nm_port *nm_receive(int fd, struct nm_file *f);

/* Has `fd`, which is a duplicate of `old`, be of the same file; `fd`. */
int nm_share(int old, int fd);

/* Opens /dev/netmap; a descriptor, or -1 and errno. */
int nm_open_device(int flags);
/* Binds a file to rings of port `name` as `reg` says, and fills `reg` in; 0, or an errno. */
int nm_bind(struct nm_file *f, const char *name, struct nmreq_register *reg);
/* Gives the descriptor's part of its file up; the descriptor itself stays open. */
void nm_forget(int fd);
/* Takes the binding back that has just been made. */
void nm_unbind(struct nm_file *f, int fd);
/* Keeps a file beyond the close of its descriptors, and no more. */
void nm_hold(struct nm_file *f);
void nm_release(struct nm_file *f);

/* From now on indices are in a CSB; 0, or an errno. The loop that serves it, and its end. */
int nm_csb_enable(struct nm_file *f, int fd, const struct nmreq_opt_csb *option);
int nm_kloop_start(struct nm_file *f, const struct nmreq_sync_kloop_start *body,
    const struct nmreq_opt_sync_kloop_eventfds *events);
int nm_kloop_stop(struct nm_file *f);

/* Sync of one ring: 0, or -1 if it had to be reset. */
int nm_txsync(struct nm_port *port, struct nm_kring *kring);
int nm_rxsync(struct nm_kring *kring);

/* Rings and flags of an older request, in today's words. */
void nm_modern(const struct nmreq *old, char name[NETMAP_REQ_IFNAMSIZ], struct nmreq_register *reg);

/* Whether an ioctl is one of netmap's. */
int nm_is_request(unsigned long request);
/* The ioctl of a file. */
int nm_ioctl(struct nm_file *f, int fd, unsigned long request, void *arg);
/* Why the last request failed, for people. */
const char *nm_why(int error);
void nm_set_why(const char *text);
int nm_has_why(void);

/* Puts a packet into the free slots of a ring; whether it fitted. */
int nm_put(struct netmap_ring *ring, const void *buf, size_t size);

/* For those that wait: the syncs of a poll and what is ready; whether the daemon has ended; to be woken by the
 * descriptor, or no more (true if something has moved since `nm_look`). */
short nm_look(struct nm_file *f, short events);
int nm_is_gone(struct nm_file *f);
int nm_arm(struct nm_file *f, short events, int on);

/* What epoll sets know of descriptors that are closed. */
void nm_epoll_forget(int fd);

#endif
