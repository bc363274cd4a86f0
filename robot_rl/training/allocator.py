"""Configures glibc's malloc to keep freed memory instead of returning it to the system."""

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc's maximum."""


def keep_freed_memory() -> bool:
    """Ask glibc's malloc to keep freed blocks; returns False with another C library.

    An update allocates and frees tensors of a few hundred kilobytes, and each new page costs a page fault:
    7 to 11 % of an update on the CPU (`robot-rl bench update`, with and without).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = (
        (_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
        (_TRIM_THRESHOLD, 2**31 - 1),
        (_TOP_PAD, 64 << 20),
    )
    accepted = [mallopt(name, value) == 1 for name, value in settings]
    return all(accepted)
