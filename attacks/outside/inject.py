"""System calls in the place of a thread of the running program, as if its peer had taken that thread over.

The thread is stopped (ptrace(2)), made to run two instructions that stand behind the program's own code, and afterwards
goes on where it was. The program itself has nothing for this: it is the one that users run. x86-64.
"""

import ctypes
import os
import signal
import struct

from .daemon import Failure

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, INTERRUPT, GETREGS, SETREGS, CONT, DETACH = 0x4206, 0x4207, 12, 13, 7, 17
WALL = 0x40000000
# struct user_regs_struct of sys/user.h
NAMES = ("r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
         "fs_base gs_base ds es fs gs").split()
# syscall; int3
CODE = b"\x0f\x05\xcc"


class Ended(Exception):
    """The whole process was ended by a call; by which signal."""


def threads(pid):
    """The threads of a process: number and name."""
    for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        try:
            yield tid, open(f"/proc/{pid}/task/{tid}/comm").read().strip()
        except OSError:
            continue


def ptrace(request, tid, address=None, data=None):
    if LIBC.ptrace(request, tid, address, data) == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request:#x}: {os.strerror(error)}")


class Process:
    """A process of the program's that is not the daemon: a door, a holder."""

    def __init__(self, pid):
        self.pid, self.process, self.returncode = pid, self, None


class Thread:
    """One thread of `daemon`, taken over for as long as this is open. With `lives` a process that a refused call would end goes on:
    the signal is taken from it."""

    def __init__(self, daemon, tid, lives=False):
        self.daemon, self.tid, self.lives = daemon, tid, lives
        self.memory = open(f"/proc/{daemon.pid}/mem", "r+b", buffering=0)
        ptrace(SEIZE, tid)
        ptrace(INTERRUPT, tid)
        self.wait()
        self.saved = self.registers()
        self.spot = self.code()
        self.data = (self.saved["rsp"] - 8192) & ~15
        self.there = self.read(self.data, 4096)
        self.used = 0

    def code(self):
        """The program's entry, which has been run for good (System V ABI, ELF header: `e_type`, `e_entry`)."""
        program = os.readlink(f"/proc/{self.daemon.pid}/exe")
        with open(f"/proc/{self.daemon.pid}/exe", "rb") as file:
            header = file.read(64)
        (kind,), (entry,) = struct.unpack_from("<H", header, 16), struct.unpack_from("<Q", header, 24)
        for line in open(f"/proc/{self.daemon.pid}/maps"):
            fields = line.split()
            if fields[-1] == program and int(fields[2], 16) == 0:
                spot = entry + (int(fields[0].split("-")[0], 16) if kind == 3 else 0)
                self.write(spot, CODE)
                return spot
        raise Failure("the program's first mapping is not there")

    def read(self, at, length):
        return os.pread(self.memory.fileno(), length, at)

    def write(self, at, data):
        os.pwrite(self.memory.fileno(), data, at)

    def put(self, data):
        """Puts `data` where the thread can read it; its address."""
        if self.used + len(data) > 4096:
            self.used = 0
        at = self.data + self.used
        self.write(at, data)
        self.used += (len(data) + 15) & ~15
        return at

    def registers(self):
        buffer = ctypes.create_string_buffer(8 * len(NAMES))
        ptrace(GETREGS, self.tid, None, ctypes.addressof(buffer))
        return dict(zip(NAMES, struct.unpack(f"{len(NAMES)}Q", buffer.raw)))

    def set(self, registers):
        buffer = ctypes.create_string_buffer(struct.pack(f"{len(NAMES)}Q", *(registers[n] for n in NAMES)))
        ptrace(SETREGS, self.tid, None, ctypes.addressof(buffer))

    def wait(self):
        """Waits until the thread stops; by which signal."""
        try:
            _, status = os.waitpid(self.tid, WALL)
        except ChildProcessError:
            raise Ended from None
        if os.WIFSIGNALED(status) or os.WIFEXITED(status):
            if self.tid == self.daemon.pid:
                self.daemon.process.returncode = os.waitstatus_to_exitcode(status)
            raise Ended
        return os.WSTOPSIG(status)

    def call(self, number, *arguments):
        """Makes the call: its result as the kernel gives it, and whether a filter answered in the kernel's place."""
        arguments = [self.put(a) if isinstance(a, bytes) else a & (1 << 64) - 1 for a in arguments] + [0] * 6
        new = dict(zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), arguments))
        # No call is under way that would have to be begun again. The stack of a handler is far below the data.
        self.set({**self.saved, **new, "rax": number, "orig_rax": (1 << 64) - 1, "rip": self.spot, "rsp": self.data - 16384})
        trapped, pending = False, 0
        while True:
            ptrace(CONT, self.tid, None, pending)
            stopped = self.wait()
            now = self.registers()
            if stopped == signal.SIGTRAP and now["rip"] == self.spot + len(CODE):
                # Without a handler nobody has put an error in the place of the call's number.
                return -1 if trapped and self.lives else ctypes.c_long(now["rax"]).value, trapped
            trapped = trapped or stopped == signal.SIGSYS
            is_taken = stopped == signal.SIGTRAP or stopped == signal.SIGSYS and self.lives
            pending = 0 if is_taken else stopped

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is not Ended:
                self.write(self.data, self.there)
                self.set(self.saved)
                ptrace(DETACH, self.tid)
        finally:
            self.memory.close()
        return False
