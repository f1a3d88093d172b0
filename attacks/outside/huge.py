"""Huge pages, given back whatever happens."""

import os

from .daemon import Failure
from .vhost import libc, memfd

POOL = "/proc/sys/vm/nr_hugepages"
PAGE = 2 << 20
MFD_HUGETLB = 4


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
