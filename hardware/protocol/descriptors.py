"""File descriptors of this process: how many it may have, and how many it has."""

import os
import resource
from typing import Final

WANTED: Final = 8192
"""The limit that a server asks for. Beyond it nothing is gained: far fewer connections are taken."""
LEAST: Final = 512
"""A server with a lower limit is refused: it has about 50 descriptors before the first client comes."""


def raise_limit() -> int:
    """Let this process have `WANTED` descriptors, or as many as the machine allows; returns the limit.

    Raises:
        ValueError: it is lower than `LEAST`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No limit at all is written as a negative number.
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    limit = WANTED if soft == resource.RLIM_INFINITY else soft
    if limit < LEAST:
        raise ValueError(
            f"this process may open {limit} files, a server needs {LEAST}: raise the hard limit (ulimit -Hn)"
        )
    return limit


def in_use() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
