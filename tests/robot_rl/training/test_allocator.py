"""The C library takes the settings, or is another one."""

import platform

from robot_rl.training.allocator import keep_freed_memory


def test_glibc_takes_the_settings() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
