"""Words of shared memory in one load or store.

`struct` clears what it is to write, and goes byte by byte: an index that is half written is a lie, and one that is half read
another.
"""

import struct


def put(memory, at, value, kind="I"):
    """Writes a word of `kind`, a character of `struct`, at its natural alignment."""
    with memoryview(memory) as view, view[at:at + struct.calcsize(kind)] as part, part.cast(kind) as word:
        word[0] = value


def get(memory, at, kind="I"):
    """Reads such a word."""
    with memoryview(memory) as view, view[at:at + struct.calcsize(kind)] as part, part.cast(kind) as word:
        return word[0]
