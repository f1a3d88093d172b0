// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Faults in a guest's kernel, for tests of the drivers that it runs. They are put where a driver calls the kernel, and
 * turned on and off by parameters:
 *
 * no_buffers: a driver that allocates a buffer for a frame to come gets none.
 * hold: a driver that has cancelled its delayed work goes on only when this is 0 again; `held` says that one waits. Interrupts
 * come in meanwhile, so the guest needs a second processor for everything else.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pgtable.h>
#include <linux/workqueue.h>

static bool no_buffers, hold, held;
module_param(no_buffers, bool, 0644);
module_param(hold, bool, 0644);
module_param(held, bool, 0444);

static int allocated(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	if (READ_ONCE(no_buffers)) {
		dev_kfree_skb_any((struct sk_buff *)regs_return_value(regs));
		regs_set_return_value(regs, 0);
	}
	return 0;
}

/* Nonzero: the return is of no interest. */
static int cancels(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	const struct delayed_work *work = (void *)regs_get_kernel_argument(regs, 0);

	return !READ_ONCE(hold) || (unsigned long)work->work.func < MODULES_VADDR;
}

static int cancelled(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	WRITE_ONCE(held, true);
	while (READ_ONCE(hold))
		cpu_relax();
	WRITE_ONCE(held, false);
	return 0;
}

static struct kretprobe buffers = { .handler = allocated, .kp.symbol_name = "__netdev_alloc_skb" };
static struct kretprobe work = {
	.entry_handler = cancels, .handler = cancelled, .kp.symbol_name = "cancel_delayed_work_sync",
};
static struct kretprobe *probes[] = { &buffers, &work };

static int __init faults_init(void)
{
	return register_kretprobes(probes, ARRAY_SIZE(probes));
}

static void __exit faults_exit(void)
{
	unregister_kretprobes(probes, ARRAY_SIZE(probes));
}

module_init(faults_init);
module_exit(faults_exit);
MODULE_DESCRIPTION("Faults for tests of drivers");
MODULE_LICENSE("Dual MIT/GPL");
