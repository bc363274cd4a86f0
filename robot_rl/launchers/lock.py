"""A lock of a file or folder that one command at a time may write into."""

import fcntl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from robot_rl.errors import UserError
from robot_rl.files.durable import make_folder

LOCK: Final = ".lock"
"""Name of the lock inside a folder that is locked."""


@contextmanager
def lock(file: Path, used: Path, user: str, option: str) -> Iterator[int]:
    """Context that locks a file, which it creates; its value is the file descriptor of the lock.

    The lock lasts while any process keeps the descriptor open, so also for child processes left behind.

    Args:
        file: the lock.
        used: what it protects, for the message.
        user: command that writes into it, for the message.
        option: option that names it, for the message.

    Raises:
        UserError: if another process holds the lock.
    """
    make_folder(file.parent)
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another `{user}` is using {used}: wait for it, or choose another {option}=…"
            ) from None
        yield opened.fileno()


def lock_folder(folder: Path, user: str, option: str) -> AbstractContextManager[int]:
    """Lock a folder, which is created; see `lock`."""
    return lock(folder / LOCK, folder, user, option)
