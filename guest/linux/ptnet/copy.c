// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Copies between the buffers of slots and the stack's memory: one for each byte of a frame and direction, which makes
 * it the dearest thing that this driver does.
 *
 * memcpy() is what the kernel thinks best for the processor, on x86 since 2012 a string instruction (`rep movsb`). An
 * emulator that offers that instruction carries it out a byte at a time. There we copy words with plain moves. All
 * other processors get memcpy().
 */
#include <linux/cache.h>
#include <linux/skbuff.h>

#include "ptnet.h"

static bool by_words __ro_after_init;

#ifdef CONFIG_X86_64
#include <asm/cpufeature.h>
#include <asm/processor.h>
/* Linux 6.16 was the first that has cpuid() there. */
#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h>
#endif

/* QEMU's translator says its name in the first leaf of hypervisors. */
static bool is_emulated(void)
{
	u32 name[3], highest;

	if (!boot_cpu_has(X86_FEATURE_HYPERVISOR))
		return false;
	cpuid(0x40000000, &highest, &name[0], &name[1], &name[2]);
	return !memcmp(name, "TCGTCGTCGTCG", sizeof(name));
}

/* The compiler must not find out that this is memcpy(), hence once. Words need not be aligned on this processor. */
static void copy_words(u8 *to, const u8 *from, size_t bytes)
{
	const u64 *source = (const u64 *)from;
	u64 *target = (u64 *)to, a, b, c, d;

	for (; bytes >= 4 * sizeof(a); bytes -= 4 * sizeof(a)) {
		a = READ_ONCE(source[0]);
		b = READ_ONCE(source[1]);
		c = READ_ONCE(source[2]);
		d = READ_ONCE(source[3]);
		WRITE_ONCE(target[0], a);
		WRITE_ONCE(target[1], b);
		WRITE_ONCE(target[2], c);
		WRITE_ONCE(target[3], d);
		source += 4;
		target += 4;
	}
	for (; bytes >= sizeof(a); bytes -= sizeof(a))
		WRITE_ONCE(*target++, READ_ONCE(*source++));
	from = (const u8 *)source;
	to = (u8 *)target;
	while (bytes--)
		WRITE_ONCE(*to++, READ_ONCE(*from++));
}
#else
static bool is_emulated(void)
{
	return false;
}

static void copy_words(u8 *to, const u8 *from, size_t bytes)
{
	memcpy(to, from, bytes);
}
#endif

/* Finds out how to copy. */
void __init pt_copy_init(void)
{
	by_words = is_emulated();
}

static void copy(u8 *to, const u8 *from, size_t bytes)
{
	if (unlikely(by_words))
		copy_words(to, from, bytes);
	else
		memcpy(to, from, bytes);
}

/* Where a frame is read: its memory comes in stretches. */
void pt_read_begin(struct pt_reader *at, struct sk_buff *skb)
{
	skb_prepare_seq_read(skb, 0, skb->len, &at->state);
	at->done = 0;
	at->left = 0;
}

void pt_read_end(struct pt_reader *at)
{
	skb_abort_seq_read(&at->state);
}

/* The frame's next bytes; false if it has not so many. */
bool pt_read(struct pt_reader *at, u8 *to, u32 bytes)
{
	while (bytes) {
		u32 part;

		if (!at->left) {
			at->left = skb_seq_read(at->done, &at->from, &at->state);
			if (!at->left)
				return false;
			at->done += at->left;
		}
		part = min(bytes, at->left);
		copy(to, at->from, part);
		to += part;
		bytes -= part;
		at->from += part;
		at->left -= part;
	}
	return true;
}

/* Where a frame of ours is written: its head, and then the pages that were allocated with it. */
void pt_write_begin(struct pt_writer *at, struct sk_buff *skb)
{
	at->skb = skb;
	at->to = skb->data;
	at->left = skb_headlen(skb);
	at->frag = 0;
}

/* The frame's next bytes; false if it is full. */
bool pt_write(struct pt_writer *at, const u8 *from, u32 bytes)
{
	while (bytes) {
		const struct skb_shared_info *info = skb_shinfo(at->skb);
		u32 part;

		if (!at->left) {
			if (at->frag >= info->nr_frags)
				return false;
			/* Never high memory: the driver does not ask for that. */
			at->to = skb_frag_address(&info->frags[at->frag]);
			at->left = skb_frag_size(&info->frags[at->frag++]);
		}
		part = min(bytes, at->left);
		copy(at->to, from, part);
		from += part;
		bytes -= part;
		at->to += part;
		at->left -= part;
	}
	return true;
}
