// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The memory: a PCI function of its own, whose BAR 1 holds interface, rings and buffers of one card. Cards find it by
 * its number.
 */
#include <linux/module.h>

#include "ptnet.h"

static LIST_HEAD(memories);
static DEFINE_MUTEX(memories_lock);

static void memory_free(struct kref *users)
{
	struct pt_memory *m = container_of(users, struct pt_memory, users);

	memunmap(m->base);
	kfree(m);
}

void pt_memory_put(struct pt_memory *m)
{
	kref_put(&m->users, memory_free);
}

/*
 * The memory with this number for `user`, a device that is being probed; NULL if there is none yet. The kernel unbinds
 * the user's driver before the memory's.
 */
struct pt_memory *pt_memory_get(u16 id, struct device *user)
{
	struct pt_memory *m, *found = NULL;

	mutex_lock(&memories_lock);
	list_for_each_entry(m, &memories, list) {
		if (m->id != id)
			continue;
		if (device_link_add(user, m->device, DL_FLAG_AUTOREMOVE_CONSUMER)) {
			kref_get(&m->users);
			found = m;
		}
		break;
	}
	mutex_unlock(&memories_lock);
	return found;
}

static int memory_enlist(struct pt_memory *m)
{
	struct pt_memory *other;
	int err = 0;

	mutex_lock(&memories_lock);
	list_for_each_entry(other, &memories, list)
		if (other->id == m->id)
			err = -EEXIST;
	if (!err)
		list_add(&m->list, &memories);
	mutex_unlock(&memories_lock);
	return err;
}

static int memory_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct device *device = &pdev->dev;
	void __iomem *regs;
	struct pt_memory *m;
	u64 bufs;
	int err;

	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = pcim_iomap_regions(pdev, BIT(0), KBUILD_MODNAME);
	if (err)
		return err;
	err = pci_request_region(pdev, 1, KBUILD_MODNAME);
	if (err)
		return err;
	regs = pcim_iomap_table(pdev)[0];
	if (pci_resource_len(pdev, 0) < M_REGS)
		return dev_err_probe(device, -EINVAL, "BAR 0 is too short\n");
	m = kzalloc(sizeof(*m), GFP_KERNEL);
	if (!m)
		return -ENOMEM;
	kref_init(&m->users);
	m->device = device;
	m->id = ioread32(regs + M_ID);
	m->size = ioread32(regs + M_SIZE_LOW) | (u64)ioread32(regs + M_SIZE_HIGH) << 32;
	bufs = ioread32(regs + M_BUFS_OFFSET);
	m->buf_count = ioread32(regs + M_BUFS);
	m->buf_stride = ioread32(regs + M_BUF_SIZE);
	m->buf_size = min_t(u32, m->buf_stride, U16_MAX);
	err = -EINVAL;
	if (m->size > pci_resource_len(pdev, 1) || bufs > m->size || m->buf_stride < 64 ||
	    m->buf_count > (m->size - bufs) / m->buf_stride) {
		dev_err(device, "%llu bytes with %u buffers of %u bytes from %llu do not fit BAR 1\n", m->size,
			m->buf_count, m->buf_stride, bufs);
		goto failed;
	}
	m->at = pci_resource_start(pdev, 1);
	m->base = memremap(m->at, m->size, MEMREMAP_WB);
	if (!m->base) {
		err = -ENOMEM;
		goto failed;
	}
	m->bufs = m->base + bufs;
	err = memory_enlist(m);
	if (err) {
		dev_err(device, "another card has memory %u, too\n", m->id);
		memunmap(m->base);
		goto failed;
	}
	pci_set_drvdata(pdev, m);
	return 0;
failed:
	kfree(m);
	return err;
}

static void memory_remove(struct pci_dev *pdev)
{
	struct pt_memory *m = pci_get_drvdata(pdev);

	mutex_lock(&memories_lock);
	list_del(&m->list);
	mutex_unlock(&memories_lock);
	pt_memory_put(m);
}

static const struct pci_device_id memory_ids[] = { { PCI_DEVICE(PT_VENDOR, PT_MEMORY) }, {} };
MODULE_DEVICE_TABLE(pci, memory_ids);

struct pci_driver pt_memory_driver = {
	.name = KBUILD_MODNAME "_memory",
	.id_table = memory_ids,
	.probe = memory_probe,
	.remove = memory_remove,
};
