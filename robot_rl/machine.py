"""This machine: its hardware and package versions, for run records, and its memory allocator."""

import ctypes
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

# The packages whose version can change a result.
PACKAGES = ("robot-rl", "torch", "mujoco", "robosuite", "numpy", "gymnasium", "diffusers", "zarr", "numba")
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc's maximum."""


def describe_machine() -> dict[str, Any]:
    """Processor, usable cores, GPU (None without one) and platform."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "platform": platform.platform(),
    }


def memory_bytes(device: torch.device) -> int:
    """Total memory of a torch device, in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def describe_versions() -> dict[str, str]:
    """Version of Python and of each installed package that can change a result."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # an optional part, or robot-rl run from its source
    return versions


def _cpu_model() -> str:
    """Model name of the processor; `platform.processor()` is empty on most Linux systems."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


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
