// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * /dev/netmap: programs that use netmap's API have the rings of a card themselves.
 *
 * A program registers an interface of ours, maps the memory, and from then on fills and empties slots. Its ioctl() and
 * poll() hand them over, through the same blocks that the stack's frames go through. While any program has the card,
 * the stack has not: the polls are off and the queues stand still.
 *
 * Behind the memory a program finds a page for each open file: the interface with the rings that this file has, and with none in
 * place of the others, as libraries expect it. All files of a card see all of these pages, since libraries map a memory once.
 *
 * Whatever a program writes into a ring is read once and must lie between what it gave last and what it was given last;
 * if it does not, the ring is put back to where it was. The host, which believes no slot, is what stands between this
 * memory and all others.
 *
 * Locks: rtnl for which file has which card, then a file's own for the card that it has, which the fault handler takes,
 * too: so no memory of the program's is touched under it. A ring's bit is held for one sync; a thread that finds it
 * held has nothing to do.
 */
#include <linux/compat.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nsproxy.h>
#include <linux/poll.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <net/net_namespace.h>

#include "api.h"
#include "ptnet.h"

struct pt_file {
	struct list_head list;		/* of the card's files */
	struct mutex lock;
	struct ptnet *p;		/* NULL: not bound */
	u32 interface;			/* which of its interfaces */
	struct address_space *mapping;
	wait_queue_head_t wait;
	u32 first_tx, end_tx;		/* among the card's rings, TX rings first */
	u32 first_rx, end_rx;
	u64 flags;
};

static bool has(const struct pt_file *f, const struct pt_ring *r)
{
	u32 i = r - r->p->rings;

	return (i >= f->first_tx && i < f->end_tx) || (i >= f->first_rx && i < f->end_rx);
}

/* The interrupt of a ring that programs have. */
void pt_files_wake(struct pt_ring *r)
{
	struct pt_file *f;
	unsigned long flags;

	spin_lock_irqsave(&r->p->files_lock, flags);
	list_for_each_entry(f, &r->p->files, list)
		if (has(f, r))
			wake_up_poll(&f->wait, r->rx ? EPOLLIN : EPOLLOUT);
	spin_unlock_irqrestore(&r->p->files_lock, flags);
}

static struct pt_ring_head *head_of(const struct pt_ring *r)
{
	return container_of(r->slots, struct pt_ring_head, slots[0]);
}

/* What the program finds in the ring. */
static void settle(struct pt_ring *r, u32 cur)
{
	struct pt_ring_head *h = head_of(r);

	r->shown = r->tail;
	WRITE_ONCE(h->head, r->head);
	WRITE_ONCE(h->cur, cur);
	virt_store_release(&h->tail, r->tail);
}

/* Puts slots that make no sense right, and the ring to where it was. */
static void reset(struct pt_ring *r)
{
	const struct pt_memory *m = r->p->memory;
	u32 i;

	for (i = 0; i < r->size; i++) {
		u64 word = READ_ONCE(r->slots[i].word);

		if (!pt_buf(m, word))
			WRITE_ONCE(r->slots[i].word, 0);
		else if (pt_len(word) > m->buf_size)
			WRITE_ONCE(r->slots[i].word, word & SLOT_BUF);
	}
	pt_look(r);
	settle(r, r->head);
}

/*
 * Takes what the program gives, and shows it what the host has given. `blocked`: the program has nothing to do then. False: its
 * indices made no sense.
 */
static bool sync_ring(struct pt_ring *r, bool *blocked)
{
	struct pt_ring_head *h = head_of(r);
	u32 head = READ_ONCE(h->head), cur = READ_ONCE(h->cur), room = pt_steps(r, r->head, r->shown);

	if (head >= r->size || cur >= r->size || pt_steps(r, r->head, head) > room ||
	    pt_steps(r, r->head, cur) > room || pt_steps(r, r->head, cur) < pt_steps(r, r->head, head)) {
		reset(r);
		*blocked = false;
		return false;
	}
	r->head = head;
	pt_publish(r, cur, r->rx ? SYNC_READ : SYNC_RECLAIM);
	pt_look(r);
	settle(r, cur);
	*blocked = cur == r->tail;
	/* Another program that shares the ring may sleep; from now on nothing would wake it. */
	if (!*blocked && READ_ONCE(r->guest->need_kick)) {
		WRITE_ONCE(r->guest->need_kick, 0);
		pt_files_wake(r);
	}
	if (r->rx && !*blocked) {
		struct timespec64 now;

		ktime_get_real_ts64(&now);
		h->ts[0] = now.tv_sec;
		h->ts[1] = now.tv_nsec / NSEC_PER_USEC;
	}
	return true;
}

/* A program that finds nothing wants an interrupt, unless there is something after all (ring.c). */
static void ask(struct pt_ring *r, bool *blocked)
{
	u32 cur = READ_ONCE(r->guest->cur);

	WRITE_ONCE(r->guest->need_kick, 1);
	/* Hosts that move slots only when they are kicked have to hear of it, too. */
	pt_kick(r, r->rx ? SYNC_READ : SYNC_RECLAIM);
	pt_look(r);
	if (r->tail == cur)
		return;
	WRITE_ONCE(r->guest->need_kick, 0);
	r->shown = r->tail;
	virt_store_release(&head_of(r)->tail, r->tail);
	*blocked = false;
}

/* Syncs rings `from` to `end` and returns `ready` if one of them has work for the program; `asks` for an interrupt otherwise. */
static __poll_t sync_rings(struct pt_file *f, u32 from, u32 end, __poll_t ready, bool asks)
{
	__poll_t found = 0;
	u32 i;

	for (i = from; i < end; i++) {
		struct pt_ring *r = &f->p->rings[i];
		bool blocked;

		if (test_and_set_bit_lock(0, &r->busy))
			continue;
		if (!sync_ring(r, &blocked))
			found |= EPOLLERR;
		if (blocked && asks)
			ask(r, &blocked);
		if (!blocked)
			found |= ready;
		clear_bit_unlock(0, &r->busy);
	}
	return found;
}

static __poll_t pt_file_poll(struct file *file, poll_table *wait)
{
	struct pt_file *f = file->private_data;
	__poll_t events = poll_requested_events(wait), found = 0;

	poll_wait(file, &f->wait, wait);
	mutex_lock(&f->lock);
	if (!f->p) {
		found = EPOLLERR;
	} else {
		/* Slots to send are handed over whatever is asked for, unless the program wanted it otherwise. */
		if (events & EPOLLOUT || !(f->flags & NM_NO_TX_POLL))
			found |= sync_rings(f, f->first_tx, f->end_tx, EPOLLOUT, events & EPOLLOUT);
		if (events & EPOLLIN)
			found |= sync_rings(f, f->first_rx, f->end_rx, EPOLLIN, !(found & events));
	}
	mutex_unlock(&f->lock);
	return found;
}

/* A card of ours by the name of its interface, under rtnl. */
static struct ptnet *card(const char *name)
{
	struct net_device *dev = __dev_get_by_name(current->nsproxy->net_ns, name);
	struct ptnet *p = dev && pt_is_ours(dev) ? netdev_priv(dev) : NULL;

	return p && !p->gone ? p : NULL;
}

static bool overlap(const struct pt_file *a, const struct pt_file *b)
{
	return max(a->first_tx, b->first_tx) < min(a->end_tx, b->end_tx) ||
	       max(a->first_rx, b->first_rx) < min(a->end_rx, b->end_rx);
}

/* Which rings are asked for. */
static int choose(struct pt_file *f, const struct ptnet *p, const struct nm_register *r)
{
	bool one = r->mode == NM_ONE_NIC;

	if (r->flags & NM_MONITORS || (r->mode != NM_ALL_NIC && !one))
		return -EOPNOTSUPP;
	if (one && r->ringid >= max(p->tx_rings, p->rx_rings))
		return -EINVAL;
	if (p->header && !(r->flags & NM_ACCEPT_HEADER))
		return -EIO;
	f->first_tx = one ? min_t(u32, r->ringid, p->tx_rings) : 0;
	f->end_tx = one ? min(f->first_tx + 1, p->tx_rings) : p->tx_rings;
	f->first_rx = p->tx_rings + (one ? min_t(u32, r->ringid, p->rx_rings) : 0);
	f->end_rx = one ? min(f->first_rx + 1, p->tx_rings + p->rx_rings) : p->tx_rings + p->rx_rings;
	if (r->flags & NM_RX_ONLY)
		f->end_tx = f->first_tx;
	if (r->flags & NM_TX_ONLY)
		f->end_rx = f->first_rx;
	f->flags = r->flags;
	return 0;
}

/* Where an interface is in what programs map. */
static s64 interface_at(const struct ptnet *p, u32 interface)
{
	return PAGE_ALIGN(p->memory->size) + interface * PAGE_SIZE;
}

static void tell(const struct ptnet *p, struct nm_port_info *info)
{
	memset(info, 0, sizeof(*info));
	info->memsize = PAGE_ALIGN(p->memory->size) + PT_FILES * PAGE_SIZE;
	info->tx_slots = p->rings[0].size;
	info->rx_slots = p->rings[p->tx_rings].size;
	info->tx_rings = p->tx_rings;
	info->rx_rings = p->rx_rings;
	info->host_tx_rings = info->host_rx_rings = 1;
	info->mem_id = p->memory->id;
}

/* An interface that has the rings of `f`. */
static int make_interface(struct ptnet *p, struct pt_file *f)
{
	u32 i, at = find_first_zero_bit(p->interfaces_used, PT_FILES);
	struct pt_if *nif;

	if (at == PT_FILES)
		return -ENOSPC;
	if (!p->interfaces[at])
		p->interfaces[at] = (struct pt_if *)get_zeroed_page(GFP_KERNEL);
	nif = p->interfaces[at];
	if (!nif)
		return -ENOMEM;
	BUILD_BUG_ON(sizeof(*nif) + (PT_RINGS + 2) * sizeof(nif->ring_ofs[0]) > PT_PAGE);
	memset(nif, 0, PT_PAGE);
	strscpy(nif->name, p->dev->name, sizeof(nif->name));
	nif->version = NM_API_MIN;
	nif->tx_rings = p->tx_rings;
	nif->rx_rings = p->rx_rings;
	/* Libraries expect a place for one of each direction, which stays empty. */
	nif->host_tx_rings = nif->host_rx_rings = 1;
	f->interface = at;
	for (i = 0; i < p->tx_rings + p->rx_rings; i++) {
		struct pt_ring *r = &p->rings[i];

		if ((i >= f->first_tx && i < f->end_tx) || (i >= f->first_rx && i < f->end_rx))
			nif->ring_ofs[r->rx ? i + 1 : i] = (u8 *)head_of(r) - p->memory->base - interface_at(p, at);
	}
	return 0;
}

/* Binds a file to rings of a card; the first one takes the card from the stack. */
static int bind(struct pt_file *f, const char *name, struct nm_register *r)
{
	struct pt_file wanted, *other;
	struct nm_port_info info;
	struct ptnet *p;
	int err = 0;
	u32 i;

	rtnl_lock();
	p = card(name);
	if (!p)
		err = -ENXIO;
	else if (f->p)
		err = -EBUSY;
	else
		err = choose(&wanted, p, r);
	if (err)
		goto out;
	list_for_each_entry(other, &p->files, list)
		if ((other->flags | wanted.flags) & NM_EXCLUSIVE && overlap(other, &wanted))
			err = -EBUSY;
	if (!err)
		err = make_interface(p, &wanted);
	if (!err && list_empty(&p->files))
		err = pt_lend(p);
	if (err)
		goto out;
	__set_bit(wanted.interface, p->interfaces_used);
	if (list_empty(&p->files)) {
		for (i = 0; i < p->tx_rings + p->rx_rings; i++)
			settle(&p->rings[i], p->rings[i].head);
	}
	mutex_lock(&f->lock);
	f->first_tx = wanted.first_tx;
	f->end_tx = wanted.end_tx;
	f->first_rx = wanted.first_rx;
	f->end_rx = wanted.end_rx;
	f->flags = wanted.flags;
	f->interface = wanted.interface;
	f->p = p;
	mutex_unlock(&f->lock);
	spin_lock_irq(&p->files_lock);
	list_add(&f->list, &p->files);
	spin_unlock_irq(&p->files_lock);
	tell(p, &info);
	r->offset = interface_at(p, f->interface);
	r->memsize = info.memsize;
	r->tx_slots = info.tx_slots;
	r->rx_slots = info.rx_slots;
	r->tx_rings = info.tx_rings;
	r->rx_rings = info.rx_rings;
	r->host_tx_rings = info.host_tx_rings;
	r->host_rx_rings = info.host_rx_rings;
	r->mem_id = info.mem_id;
	r->extra_bufs = 0;
out:
	rtnl_unlock();
	return err;
}

/* Under rtnl. */
static void unbind(struct pt_file *f)
{
	struct ptnet *p = f->p;

	if (!p)
		return;
	spin_lock_irq(&p->files_lock);
	list_del(&f->list);
	spin_unlock_irq(&p->files_lock);
	mutex_lock(&f->lock);
	f->p = NULL;
	mutex_unlock(&f->lock);
	__clear_bit(f->interface, p->interfaces_used);
	if (list_empty(&p->files))
		pt_take_back(p);
}

/* The card goes: its programs lose it, and the memory with it. */
void pt_files_part(struct ptnet *p)
{
	struct pt_file *f, *next;
	u32 i;

	rtnl_lock();
	p->gone = true;
	list_for_each_entry_safe(f, next, &p->files, list) {
		struct address_space *mapping = f->mapping;

		unbind(f);
		/* All mappings of this node; those of other cards are made again when they are touched. */
		unmap_mapping_range(mapping, 0, 0, 1);
		wake_up_poll(&f->wait, EPOLLERR);
	}
	for (i = 0; i < PT_FILES; i++) {
		free_page((unsigned long)p->interfaces[i]);
		p->interfaces[i] = NULL;
	}
	rtnl_unlock();
}

static int info_of(const char *name, struct nm_port_info *info, u32 *header)
{
	struct ptnet *p;

	rtnl_lock();
	p = card(name);
	if (p) {
		tell(p, info);
		*header = p->header;
	}
	rtnl_unlock();
	return p ? 0 : -ENXIO;
}

/* No option is known here: each is told so. */
static int refuse(u64 at)
{
	struct nm_option option;
	int most;

	if (!at)
		return 0;
	for (most = 64; at && most; most--) {
		if (copy_from_user(&option, u64_to_user_ptr(at), sizeof(option)))
			return -EFAULT;
		option.status = EOPNOTSUPP;
		if (copy_to_user(u64_to_user_ptr(at), &option, sizeof(option)))
			return -EFAULT;
		at = option.next;
	}
	return -EOPNOTSUPP;
}

static int control(struct pt_file *f, struct nm_header __user *from)
{
	struct nm_port_info info;
	struct nm_register reg;
	struct nm_header h;
	void __user *body;
	u32 header;
	int err;

	if (copy_from_user(&h, from, sizeof(h)))
		return -EFAULT;
	body = u64_to_user_ptr(h.body);
	if (h.version < NM_API_MIN || h.version > NM_API_MAX || h.reserved || !body ||
	    strnlen(h.name, sizeof(h.name)) == sizeof(h.name))
		return -EINVAL;
	err = refuse(h.options);
	if (err)
		return err;
	switch (h.type) {
	case NM_REGISTER:
		if (copy_from_user(&reg, body, sizeof(reg)))
			return -EFAULT;
		err = bind(f, h.name, &reg);
		return err ?: copy_to_user(body, &reg, sizeof(reg)) ? -EFAULT : 0;
	case NM_PORT_INFO:
		err = info_of(h.name, &info, &header);
		return err ?: copy_to_user(body, &info, sizeof(info)) ? -EFAULT : 0;
	case NM_HEADER_GET:
		err = info_of(h.name, &info, &header);
		return err ?: put_user(header, (u32 __user *)body);
	default:
		return -EOPNOTSUPP;
	}
}

/* What older programs ask with, in today's words. */
static int old_control(struct pt_file *f, struct nm_old __user *from, bool binds)
{
	struct nm_register reg = {};
	struct nm_port_info info;
	struct nm_old old;
	u32 header;
	int err;

	if (copy_from_user(&old, from, sizeof(old)))
		return -EFAULT;
	if (old.version < NM_API_OLDEST || strnlen(old.name, sizeof(old.name)) == sizeof(old.name))
		return -EINVAL;
	if (binds && old.cmd && old.cmd != NM_OLD_HEADER_GET)
		return -EOPNOTSUPP;
	err = info_of(old.name, &info, &header);
	if (err)
		return err;
	if (binds && !old.cmd) {
		reg.mode = old.flags & NM_OLD_MODE;
		if (!reg.mode)
			reg.mode = old.ringid & NM_OLD_HOST ? 0 : old.ringid & NM_OLD_ONE ? NM_ONE_NIC : NM_ALL_NIC;
		reg.ringid = old.ringid & NM_OLD_RING;
		reg.flags = old.flags & ~NM_OLD_MODE;
		if (old.ringid & NM_OLD_NO_TX_POLL)
			reg.flags |= NM_NO_TX_POLL;
		err = bind(f, old.name, &reg);
		if (err)
			return err;
		old.offset = reg.offset;
		old.arg3 = 0;
	}
	if (old.cmd == NM_OLD_HEADER_GET)
		old.arg1 = header;
	old.memsize = info.memsize;
	old.tx_slots = info.tx_slots;
	old.rx_slots = info.rx_slots;
	old.tx_rings = info.tx_rings;
	old.rx_rings = info.rx_rings;
	old.arg2 = info.mem_id;
	return copy_to_user(from, &old, sizeof(old)) ? -EFAULT : 0;
}

static long pt_file_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct pt_file *f = file->private_data;
	void __user *at = (void __user *)argument;
	long err = 0;

	switch (command) {
	case NM_TXSYNC:
	case NM_RXSYNC:
		/* A ring that was put back is no error here, as in netmap. */
		mutex_lock(&f->lock);
		if (!f->p)
			err = -ENXIO;
		else if (command == NM_TXSYNC)
			sync_rings(f, f->first_tx, f->end_tx, 0, false);
		else
			sync_rings(f, f->first_rx, f->end_rx, 0, false);
		mutex_unlock(&f->lock);
		return err;
	case NM_CONTROL:
		return control(f, at);
	case NM_OLD_REGISTER:
		return old_control(f, at, true);
	case NM_OLD_INFO:
		return old_control(f, at, false);
	default:
		return -ENOTTY;
	}
}

/* What is at page `at` of what programs map; 0 if there is nothing. */
static unsigned long pfn_at(const struct ptnet *p, pgoff_t at)
{
	pgoff_t pages = PFN_UP(p->memory->size);

	if (at < pages)
		return PHYS_PFN(p->memory->at) + at;
	at -= pages;
	return at < PT_FILES && p->interfaces[at] ? PHYS_PFN(virt_to_phys(p->interfaces[at])) : 0;
}

/* A page, for as long as the file has a card. */
static vm_fault_t pt_file_fault(struct vm_fault *vmf)
{
	struct pt_file *f = vmf->vma->vm_file->private_data;
	vm_fault_t done = VM_FAULT_SIGBUS;
	unsigned long pfn;

	mutex_lock(&f->lock);
	pfn = f->p ? pfn_at(f->p, vmf->pgoff) : 0;
	if (pfn)
		done = vmf_insert_pfn(vmf->vma, vmf->address, pfn);
	mutex_unlock(&f->lock);
	return done;
}

static const struct vm_operations_struct pt_file_vm = { .fault = pt_file_fault };

static int pt_file_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct pt_file *f = file->private_data;
	int err = 0;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	mutex_lock(&f->lock);
	if (!f->p)
		err = -ENXIO;
	else if (vma->vm_pgoff + vma_pages(vma) > PFN_UP(f->p->memory->size) + PT_FILES)
		err = -EINVAL;
	mutex_unlock(&f->lock);
	if (err)
		return err;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP);
#else
	vma->vm_flags |= VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP;
#endif
	vma->vm_ops = &pt_file_vm;
	return 0;
}

static int pt_file_open(struct inode *inode, struct file *file)
{
	struct pt_file *f = kzalloc(sizeof(*f), GFP_KERNEL);

	if (!f)
		return -ENOMEM;
	mutex_init(&f->lock);
	init_waitqueue_head(&f->wait);
	f->mapping = inode->i_mapping;
	file->private_data = f;
	return 0;
}

static int pt_file_release(struct inode *inode, struct file *file)
{
	struct pt_file *f = file->private_data;

	rtnl_lock();
	unbind(f);
	rtnl_unlock();
	kfree(f);
	return 0;
}

static const struct file_operations pt_file_ops = {
	.owner = THIS_MODULE,
	.open = pt_file_open,
	.release = pt_file_release,
	.unlocked_ioctl = pt_file_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = pt_file_poll,
	.mmap = pt_file_mmap,
};

static struct miscdevice pt_misc = { .minor = MISC_DYNAMIC_MINOR, .name = "netmap", .fops = &pt_file_ops };
static bool there;

/* Where netmap itself is loaded the name is taken: then its programs do not see these cards. */
void pt_files_init(void)
{
	there = !misc_register(&pt_misc);
	if (!there)
		pr_info(KBUILD_MODNAME ": there is another /dev/netmap\n");
}

void pt_files_exit(void)
{
	if (there)
		misc_deregister(&pt_misc);
}
