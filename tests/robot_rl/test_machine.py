"""Settings of glibc's malloc."""

import platform

from robot_rl.machine import keep_freed_memory


def test_glibc_accepts_the_settings() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
