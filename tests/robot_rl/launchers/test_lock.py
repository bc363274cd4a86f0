"""The lock of a folder that the commands of a sweep write into."""

import fcntl
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from robot_rl.errors import UserError
from robot_rl.launchers.lock import lock_folder


def test_only_one_process_uses_a_working_directory(tmp_path: Path) -> None:
    def lock() -> AbstractContextManager[int]:
        return lock_folder(tmp_path, "robot-rl bench methods", "runs_dir")

    with (
        lock() as descriptor,
        pytest.raises(UserError, match=r"another `robot-rl bench methods` is using .*another runs_dir=…"),
        lock(),
    ):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    with lock():
        pass
