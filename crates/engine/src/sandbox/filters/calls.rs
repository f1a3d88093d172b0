//! The one table of system calls: which kinds of threads may make which, with which arguments, and why.
//!
//! A call that stands in no row is refused to every thread (EPERM, counted); only an attacker makes a call of
//! [`FATAL`], and it ends the process.

use libc::{c_long, c_ulong};

/// Kinds of threads, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(pub(super) u8);

impl Kinds {
    /// Everything that has no kind of its own: the daemon's first thread, its workers, and all that makes
    /// ports.
    pub const CONTROL: Kinds = Kinds(1);
    /// Threads that read what strangers sent: VMMs, ring clients, netmap programs, routing daemons. They make
    /// no rings and no threads, and open nothing.
    pub const CONVERSATION: Kinds = Kinds(2);
    /// An I/O core.
    pub const IO_CORE: Kinds = Kinds(4);
    /// Threads that wait for an event and look after a port or an I/O core, and the one that makes rings of
    /// io_uring and such threads (`crate::mem::rings`).
    pub const HELPER: Kinds = Kinds(8);
    /// No thread of the daemon: the process that receives descriptors (`super::super::descriptors`).
    pub const DESCRIPTOR_HELPER: Kinds = Kinds(16);
    /// No thread of the daemon: the process that keeps descriptors (`crate::sandbox::holder`), behind its
    /// start.
    pub const HOLDER: Kinds = Kinds(32);

    /// Every kind of the daemon's.
    pub(super) const fn all() -> Kinds {
        Kinds(15)
    }

    pub(super) const fn union(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub(super) fn meets(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn number(self) -> u8 {
        u8::try_from(self.0.trailing_zeros()).unwrap_or(0)
    }

    pub(super) fn name(self) -> &'static str {
        const NAMES: [&str; 6] = ["control", "conversation", "io-core", "helper", "door", "holder"];
        NAMES.get(usize::from(self.number())).copied().unwrap_or("")
    }
}

/// What an argument has to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Only {
    /// Argument number .0 is .1, in its lower 32 bits.
    Is(u8, u32),
    /// Argument number .0 has all of the bits .1.
    With(u8, u64),
    /// Argument number .0 has none of the bits .1.
    Without(u8, u64),
}

/// One row.
#[derive(Debug)]
pub(super) struct Row {
    pub name: &'static str,
    pub number: c_long,
    pub who: Kinds,
    /// Any of these, or all calls if there is none.
    pub only: &'static [Only],
    /// For readers of the table.
    #[allow(dead_code, reason = "the reason that each row has to give")]
    pub why: &'static str,
}

use Kinds as K;
use Only::{Is, With, Without};

const IO: K = K::IO_CORE;
const CO: K = K::CONVERSATION;
const HE: K = K::HELPER;
const CT: K = K::CONTROL;
const ALL: K = K::all();
/// A descriptor helper, and a holder: they are processes, not threads.
const DH: K = K::DESCRIPTOR_HELPER;
const HO: K = K::HOLDER;
/// All of them.
const EVERY: K = ALL.union(DH).union(HO);
/// Threads that talk with a peer.
const TALK: K = CO.union(CT);
/// All but the I/O cores.
const SLOW: K = TALK.union(HE);

/// A request of ioctl(2) or fcntl(2), as an argument.
#[allow(clippy::cast_possible_truncation, reason = "requests have 32 bits")]
const fn request(number: c_ulong) -> Only {
    Is(1, number as u32)
}

#[allow(clippy::cast_sign_loss, reason = "small positive numbers")]
const fn command(number: i32) -> Only {
    Is(1, number as u32)
}

#[allow(clippy::cast_sign_loss, reason = "small positive numbers")]
const fn first(number: i32) -> Only {
    Is(0, number as u32)
}

#[allow(clippy::cast_sign_loss, reason = "small positive numbers")]
const fn third(number: i32) -> Only {
    Is(2, number as u32)
}

/// Memory that can be run is mapped by the loader alone.
#[allow(clippy::cast_sign_loss, reason = "a bit")]
const NO_CODE: Only = Without(2, libc::PROT_EXEC as u64);
/// A name is looked at, and nothing is opened. The flags are the second argument of open(2), and the third of
/// openat(2).
#[allow(clippy::cast_sign_loss, reason = "a bit")]
const LOOK: [Only; 2] = [With(1, libc::O_PATH as u64), With(2, libc::O_PATH as u64)];
/// A thread, or a program that is started; no namespace of its own.
const NO_SPACES: Only = Without(0, 0x7e02_0000 | CLONE_PTRACE);
const CLONE_PTRACE: u64 = 0x2000;

/// PR_GET_AUXV of `linux/prctl.h`: what the kernel told this process.
const GET_AUXV: i32 = 0x4155_5856;

/// Operations of io_uring_register(2), from `linux/io_uring.h`.
const REGISTER_EVENTFD: i32 = 4;
const UNREGISTER_EVENTFD: i32 = 5;

macro_rules! rows {
    ($($(#[$cfg:meta])* $call:ident $who:expr, [$($only:expr),* $(,)?], $why:literal;)*) => {
        &[$($(#[$cfg])* Row {
            name: rows!(@name $call),
            number: libc::$call,
            who: $who,
            only: &[$($only),*],
            why: $why,
        }),*]
    };
    (@name $call:ident) => { stringify!($call) };
}

/// The table, from calls for all threads to calls for few. What takes privileges, or a path, the broker does.
pub(super) const ALLOWED: &[Row] = rows! {
    SYS_read EVERY, [], "events, the ends of waits";
    SYS_write EVERY, [], "the log, events";
    SYS_close EVERY, [], "the last owner of something shared may be any thread";
    SYS_futex EVERY, [], "locks and channels";
    SYS_mmap EVERY, [NO_CODE], "the allocator; the SIGBUS handler puts zeros where a file was cut short";
    SYS_munmap EVERY, [], "the last owner of a map may be any thread";
    SYS_mremap EVERY, [], "the allocator";
    SYS_mprotect ALL, [NO_CODE], "the allocator, guards of stacks";
    SYS_madvise EVERY, [], "the allocator, stacks of threads that end";
    SYS_brk EVERY, [], "the allocator";
    SYS_rt_sigreturn EVERY, [], "the ends of signal handlers";
    SYS_rt_sigprocmask EVERY, [], "the beginning and the end of threads, abort";
    SYS_rt_sigaction ALL, [first(libc::SIGBUS), first(libc::SIGABRT), first(libc::SIGSEGV)],
        "the SIGBUS handler gives up what is not ours; abort";
    SYS_sigaltstack EVERY, [], "the beginning and the end of threads";
    SYS_restart_syscall ALL, [], "what the kernel makes of an interrupted wait";
    SYS_exit EVERY, [], "the end of a thread";
    SYS_exit_group EVERY, [], "the end";
    SYS_getpid ALL, [], "abort";
    SYS_gettid ALL, [], "abort, names of threads in panics";
    SYS_tgkill ALL, [third(libc::SIGABRT)], "abort";
    SYS_sched_yield ALL, [], "contended channels";
    SYS_clock_gettime EVERY, [], "where the vDSO has no clock";
    SYS_getrusage IO, [], "whether it waited for something";
    SYS_clock_nanosleep ALL, [], "pauses";
    SYS_getrandom EVERY, [], "keys of hash tables";
    SYS_getcpu ALL, [], "where the vDSO has none";

    SYS_epoll_pwait2 IO.union(CT), [], "an I/O core's sleep";
    SYS_epoll_pwait IO.union(CT), [], "the same before Linux 5.11; the control thread's";
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait IO.union(CT), [], "the same";
    SYS_epoll_ctl IO.union(CT).union(HO), [], "the kicks of a queue that an I/O core was given; all callers of a holder at once";
    SYS_io_uring_enter IO.union(SLOW), [], "interrupts; the rings are restricted to what they post";
    SYS_io_submit IO.union(SLOW), [], "interrupts where there is no io_uring";
    SYS_io_getevents IO.union(SLOW), [], "the same";
    SYS_readv IO, [], "frames from a TAP";
    SYS_writev IO.union(SLOW), [], "frames to a TAP; the log";
    SYS_sendto TALK, [], "messages";
    SYS_sendto IO.union(HE), [Is(5, 0)],
        "an AF_XDP socket's wake-up; interrupts by sockets; the handler of SIGTERM and SIGHUP, which any thread may run, tells the control thread";
    SYS_sendmmsg IO, [], "frames to a packet socket, or into a tunnel";
    SYS_recvmmsg IO, [], "frames out of a tunnel";
    SYS_recvfrom IO.union(TALK), [], "an AF_XDP socket's wake-up; messages";
    SYS_fcntl ALL, [command(libc::F_DUPFD_CLOEXEC), command(libc::F_GETFL), command(libc::F_GETFD)],
        "a queue's kick is watched by a duplicate";
    SYS_getsockopt IO.union(SLOW).union(DH).union(HO), [], "errors of sockets; who is there; kinds of sockets; statistics of packet sockets";

    #[cfg(target_arch = "x86_64")]
    SYS_poll SLOW.union(DH).union(HO), [], "waits";
    SYS_ppoll SLOW.union(DH).union(HO), [], "waits";
    SYS_recvmsg SLOW.union(DH).union(HO), [], "messages with descriptors; netlink";
    SYS_sendmsg TALK.union(DH).union(HO), [], "messages with descriptors";
    SYS_accept4 TALK.union(HO), [], "peers";
    SYS_shutdown TALK, [], "the end of a conversation";
    SYS_fcntl SLOW, [command(libc::F_SETFL), command(libc::F_SETFD), command(libc::F_GET_SEALS),
        command(libc::F_ADD_SEALS)], "descriptors that do not wait; what kind of memory a VMM gives";
    SYS_fcntl DH, [command(libc::F_GET_SEALS), command(libc::F_GETFD)], "what kind of memory a VMM gives";
    SYS_fcntl HO, [command(libc::F_GETFD), command(libc::F_DUPFD_CLOEXEC), command(libc::F_GETFL), command(libc::F_SETFL),
        command(libc::F_GET_SEALS), command(libc::F_ADD_SEALS)],
        "descriptors that are closed are open, say debug builds; what is kept is used by duplicates; as for SLOW";
    SYS_fstat TALK.union(HO), [], "what a descriptor is";
    SYS_fstatfs TALK.union(HO), [], "what file system a descriptor is of";
    SYS_statx TALK.union(HO), [], "the same; paths of sockets";
    SYS_newfstatat TALK.union(HO), [], "the same";
    SYS_readlinkat TALK.union(DH).union(HO), [], "what kind of descriptor a VMM gives";
    #[cfg(target_arch = "x86_64")]
    SYS_readlink TALK.union(DH).union(HO), [], "the same";
    SYS_eventfd2 SLOW.union(HO), [], "wake-ups of our own";
    SYS_memfd_create TALK.union(HO), [], "memory that is shared with a peer";
    SYS_ftruncate TALK.union(HO), [], "its length";
    SYS_fallocate TALK.union(HO), [], "its room";
    SYS_pread64 SLOW.union(IO), [], "images of devices; what the kernel says of an I/O core";
    SYS_pwrite64 TALK, [], "the same; registers of a device that a holder keeps";
    SYS_lseek TALK.union(HO), [], "files";
    SYS_preadv2 SLOW, [], "alarms, without waiting";
    SYS_pwritev2 SLOW, [], "the same";
    SYS_sendfile TALK.union(HO), [], "copies of files of our own; answers to a VMM";
    SYS_splice TALK, [], "the same";
    SYS_copy_file_range TALK, [], "the same";
    SYS_fdatasync TALK, [], "the same";
    SYS_io_uring_setup HE, [], "a ring for each interrupt, and for each queue of a disk";
    SYS_io_uring_register HE, [], "its restrictions";
    SYS_io_uring_register TALK, [command(REGISTER_EVENTFD), command(UNREGISTER_EVENTFD)], "the eventfd that it signals";
    SYS_connect CT, [], "a listener that is there already; the MTU of the way to a peer";
    SYS_bind CT, [], "sockets of interfaces";
    SYS_getsockname TALK, [], "the same";
    SYS_getpeername TALK.union(DH).union(HO), [], "the same";
    SYS_setsockopt SLOW.union(HO), [], "time limits; membership of interfaces; where a look begins";
    SYS_getuid TALK, [], "whether the other end is of our own user";
    SYS_geteuid TALK.union(HO), [], "the same";
    SYS_getgid TALK, [], "the same";
    SYS_getegid TALK, [], "the same";
    SYS_dup TALK, [], "descriptors that two own";
    SYS_ioctl SLOW.union(HO), [
        request(libc::FIONREAD), request(libc::FIONBIO), request(libc::FIOCLEX),
    ], "what waits in a socket; sockets that do not wait";
    SYS_ioctl HE.union(CT), [
        request(libc::SIOCGIFINDEX), request(libc::SIOCGIFNAME), request(libc::SIOCGIFMTU),
        request(libc::SIOCGIFFLAGS), request(libc::SIOCETHTOOL), request(libc::TUNSETCARRIER as c_ulong),
    ], "interfaces, and their carrier";
    SYS_openat CT, [], "files of our own; which ones landlock says";
    SYS_openat2 CT, [], "the same";
    SYS_openat HO, [LOOK[1]], "a holder's own names, which it removes at its end";
    SYS_unlinkat CT.union(HO), [], "sockets and journals that are gone";
    #[cfg(target_arch = "x86_64")]
    SYS_unlink CT, [], "the same";
    SYS_wait4 CT, [], "the broker's end";
    SYS_waitid CT, [], "the same";

    SYS_socket CT, [first(libc::AF_UNIX), first(libc::AF_NETLINK)], "interfaces: ioctl and what the kernel tells of them";
    SYS_ioctl CT, [
        request(libc::SIOCSIFMTU), request(libc::SIOCSIFFLAGS), request(libc::TUNSETIFF as c_ulong),
        request(libc::TUNGETIFF as c_ulong), request(libc::TUNSETOFFLOAD as c_ulong),
        request(libc::TUNSETVNETHDRSZ as c_ulong), request(libc::TUNSETVNETLE as c_ulong),
        request(libc::TUNATTACHFILTER as c_ulong), request(libc::TUNDETACHFILTER as c_ulong),
        request(libc::TUNSETSTEERINGEBPF as c_ulong), request(libc::TUNSETFILTEREBPF as c_ulong),
        request(libc::TUNSETSNDBUF as c_ulong), request(libc::TUNSETLINK as c_ulong),
        request(libc::TUNSETQUEUE as c_ulong), request(libc::TUNGETFEATURES as c_ulong),
    ], "TAPs";
    SYS_socketpair TALK, [first(libc::AF_UNIX)],
        "signals reach the control thread's event loop by a pair; messages reach the reader of the vhost crate by one";
    SYS_pipe2 SLOW, [], "wake-ups of our own; how the start of a program reports";
    SYS_epoll_create1 CT.union(HO), [], "event loops; all callers of a holder at once";
    SYS_timerfd_create CT, [], "event loops";
    SYS_timerfd_settime CT, [], "event loops";
    SYS_clone CT.union(HE), [NO_SPACES], "threads; those that fill memory beforehand";
    SYS_set_robust_list ALL, [], "the beginning of a thread";
    SYS_rseq ALL, [], "the beginning of a thread";
    SYS_sched_getaffinity SLOW, [], "stacks of threads";
    SYS_sched_setaffinity CT, [], "I/O cores are pinned";
    SYS_prctl HO, [first(libc::PR_SET_NAME)], "whether a daemon is there";
    SYS_prctl SLOW, [first(libc::PR_SET_NAME), first(libc::PR_SET_NO_NEW_PRIVS), first(libc::PR_SET_TIMERSLACK),
        first(libc::PR_GET_NO_NEW_PRIVS), first(libc::PR_GET_DUMPABLE), first(libc::PR_CAPBSET_READ),
        first(libc::PR_SET_VMA), first(GET_AUXV)],
        "names of threads and arenas; a thread narrows itself";
    SYS_seccomp SLOW, [], "a thread narrows itself; nothing can be widened";

    SYS_mkdirat CT, [], "folders of our own";
    SYS_renameat2 CT.union(HO), [], "a file that is to go is looked at under a secret name";
    SYS_renameat CT, [], "the same";
    #[cfg(target_arch = "x86_64")]
    SYS_stat TALK, [], "what is there";
    #[cfg(target_arch = "x86_64")]
    SYS_lstat TALK, [], "what is there";
    #[cfg(target_arch = "x86_64")]
    SYS_access TALK, [], "what is there";
    SYS_faccessat TALK, [], "what is there";
    SYS_faccessat2 TALK, [], "what is there";
    #[cfg(target_arch = "x86_64")]
    SYS_open CT, [], "files, as openat";
    #[cfg(target_arch = "x86_64")]
    SYS_open HO, [LOOK[0]], "a holder's own names, as openat";
    SYS_getdents64 CT, [], "folders";
    SYS_fcntl CT, [command(libc::F_OFD_SETLK)], "one user for each disk's file, and for its port's journal";
    SYS_getcwd CT, [], "paths that are not absolute";
    SYS_uname CT, [], "which kernel";
    SYS_sysinfo CT, [], "how much memory";
    SYS_prlimit64 TALK, [], "the number of descriptors; stacks of threads";
    SYS_capget CT, [], "what is in force";
    SYS_pidfd_open CT, [], "processes that end";
    SYS_rt_sigaction SLOW, [], "signals that end or reload; the start of a program";
    SYS_membarrier CT, [], "shared words";
    SYS_nanosleep SLOW, [], "pauses";
    SYS_sched_getparam CT, [], "threads";
    SYS_sched_getscheduler CT, [], "threads";
    SYS_mlock TALK, [], "memory of rings";
    SYS_get_mempolicy CO, [], "the NUMA node of a guest's memory";
    SYS_msync TALK, [], "files";
    SYS_kill CT, [Is(1, 0)], "whether a process lives";
};

macro_rules! fatal {
    ($($(#[$cfg:meta])* $call:ident)*) => { &[$($(#[$cfg])* (stringify!($call), libc::$call)),*] };
}

/// What no thread of ours and no library that we use ever calls: to run other programs' memory, to leave the
/// sandbox, to change the host.
pub(super) const FATAL: &[(&str, c_long)] = fatal! {
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_pidfd_getfd SYS_kcmp
    SYS_userfaultfd SYS_perf_event_open SYS_open_by_handle_at SYS_name_to_handle_at
    SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_unshare SYS_setns SYS_open_tree SYS_move_mount SYS_fsopen
    SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr
    SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_kexec_file_load SYS_reboot
    SYS_swapon SYS_swapoff SYS_acct SYS_quotactl SYS_syslog SYS_sethostname SYS_setdomainname
    SYS_settimeofday SYS_clock_settime SYS_adjtimex SYS_clock_adjtime
    SYS_add_key SYS_request_key SYS_keyctl
    SYS_mknodat SYS_fanotify_init SYS_nfsservctl SYS_lookup_dcookie SYS_vhangup
    SYS_memfd_secret SYS_migrate_pages SYS_move_pages
    #[cfg(target_arch = "x86_64")] SYS_iopl
    #[cfg(target_arch = "x86_64")] SYS_ioperm
    #[cfg(target_arch = "x86_64")] SYS_modify_ldt
    #[cfg(target_arch = "x86_64")] SYS_mknod
    #[cfg(target_arch = "x86_64")] SYS_uselib
};

/// The name of a system call, if it stands in this file.
pub(super) fn name(number: c_long) -> Option<&'static str> {
    let rows = ALLOWED.iter().map(|row| (row.name, row.number));
    let found = rows.chain(FATAL.iter().copied()).find(|(_, n)| *n == number);
    found.map(|(name, _)| name.strip_prefix("SYS_").unwrap_or(name))
}
