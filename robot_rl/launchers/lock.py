"""A lock of a folder that the commands of a sweep write into."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robot_rl.errors import UserError


@contextmanager
def lock_folder(folder: Path, user: str, option: str) -> Iterator[int]:
    """Context that locks a folder, which it creates; its value is the file descriptor of the lock.

    The lock lasts while any process keeps the descriptor open, so also for child processes left behind.

    Args:
        folder: what to lock.
        user: command that uses it, for the message.
        option: option that names the folder, for the message.

    Raises:
        UserError: if another process uses the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another `{user}` is using {folder}: wait for it, or choose another {option}=…"
            ) from None
        yield file.fileno()
