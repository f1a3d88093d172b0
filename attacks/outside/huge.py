"""Huge pages of both kinds, given back whatever happens."""

import os
import subprocess
import tempfile

from .daemon import Failure
from .vhost import memfd

POOL = "/proc/sys/vm/nr_hugepages"
PAGE = 2 << 20
MFD_HUGETLB = 4
# Microseconds for a few huge pages, however long one takes to be cleared; those of a whole attack take longer.
A_FEW = 4000


def pool(stage, pages):
    """So many huge pages are free; the pool is what it was when the attack is over."""
    before = open(POOL).read().strip()

    def restore():
        with open(POOL, "w") as f:
            f.write(before)

    stage.cleanup(restore)
    wanted = int(before) + pages
    with open(POOL, "w") as f:
        f.write(str(wanted))
    if int(open(POOL).read()) < wanted:
        raise Failure(f"there are no {pages} huge pages")


def file(pages):
    return memfd(pages * PAGE, MFD_HUGETLB)


def huge_file(stage, size):
    """A file on a tmpfs that clears 2 MiB at a time, as an ordinary user mounts one in a namespace of its own."""
    try:
        if "[deny]" in open("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read():
            raise Failure("the kernel makes no huge pages of files in memory")
    except FileNotFoundError:
        raise Failure("the kernel has no transparent huge pages") from None
    folder = tempfile.mkdtemp(prefix="sidecore-attack-huge-")
    stage.cleanup(os.rmdir, folder)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},huge=always", "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"no tmpfs of huge pages: {done.stderr.strip()}")
    stage.cleanup(subprocess.run, ["umount", "-l", folder])
    fd = os.open(os.path.join(folder, "memory"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.ftruncate(fd, size)
    return fd
