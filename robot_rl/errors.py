"""Errors for users in one line, with the nearest valid name, the exit codes, and stack traces of crashes.

Exit codes: 0 success, 1 a check found a problem, 2 invalid input, 130 interrupted. Any other error is a
bug of the program and shows its traceback.
"""

import errno
import faulthandler
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

USER_ERROR = 2
INTERRUPTED = 130
_STDERR = 2
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


class UserError(ValueError):
    """An error in the user's input: one line that says what is wrong and what to do about it."""


class ServerLost(UserError):
    """A server that a run needs is gone, or its answers cannot be used; the run saves and ends."""


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turns errors of code that uses the user's arguments into `UserError`s."""
    try:
        yield
    except UserError:
        raise
    except _PATH_ERRORS as error:
        raise UserError(_path_message(error)) from error
    except KeyError as error:
        # str() of a KeyError is the repr of its key.
        raise UserError(" ".join(str(part) for part in error.args) or "a key is missing") from error
    except ValueError as error:
        raise UserError(str(error)) from error
    except OverflowError as error:
        raise UserError(f"a number that was given is too large ({error})") from error
    except RecursionError as error:
        raise UserError(f"something that was given is nested too deeply ({error})") from error
    except MemoryError as error:
        raise UserError(f"what was asked for does not fit into memory ({error})") from error


def report(action: Callable[[], None]) -> int:
    """Run `action` and print a user's error, or that a process is lost, in one line; returns the exit code.

    `ROBOT_RL_DEBUG=1` shows the traceback instead.
    """
    debug = os.environ.get("ROBOT_RL_DEBUG", "0") not in ("", "0")
    try:
        action()
    except KeyboardInterrupt:
        if debug:
            raise
        return INTERRUPTED
    except Exception as error:
        full, missing = _disk_full(error), _missing_package(error)
        if debug or not (full or missing or isinstance(error, UserError | ChildProcessError)):
            raise
        _say(_full_message(full) if full else missing or str(error))
        return USER_ERROR
    return 0


def _say(message: str) -> None:
    print(f"robot-rl: {' '.join(message.split())}", file=sys.stderr)


def _path_message(error: OSError) -> str:
    if error.filename is None:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {(error.strerror or type(error).__name__).lower()}"


def _full_message(error: OSError) -> str:
    where = f" while writing {os.fsdecode(error.filename)}" if error.filename else ""
    reason, advice = "the disk is full", "free some space"
    if error.errno == errno.EFBIG:
        reason, advice = "a file is larger than the file system, or `ulimit -f`, allows", "allow it"
    return f"{reason}{where}; {advice} and run the same command again"


def _missing_package(error: Exception) -> str:
    """What to say if a package is not installed, as where only a part of the program is; "" otherwise."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in ("", "robot_rl"):
        return ""
    return f"this needs the package {package}, which is not installed; `make setup` installs all"


def _disk_full(error: BaseException) -> OSError | None:
    """The lack of space that caused `error`, which a library may have wrapped; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _DISK_FULL:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def trace_crashes() -> None:
    """Print the stacks of all Python threads when a fatal signal ends this process or one that it starts.

    With `PYTHONFAULTHANDLER` set to the empty string, started processes print none.
    """
    if not faulthandler.is_enabled():
        # By its number: `sys.stderr` may be replaced, or closed and then None.
        faulthandler.enable(file=_STDERR)
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid name that `word` most likely means, or None."""
    names = list(valid)
    if (spelled := word.replace("-", "_")) in names:
        return spelled
    found = get_close_matches(word, names, n=1)
    return found[0] if found else None


def nearest_key(key: str, valid: Iterable[str]) -> list[str]:
    """Dotted keys that `key` most likely means, best first: misspelt, or without the right section."""
    keys = list(dict.fromkeys(valid))
    if (spelled := key.replace("-", "_")) in keys:
        return [spelled]
    if close := get_close_matches(key, keys, n=1, cutoff=0.85):
        return close
    last = spelled.rpartition(".")[2]
    elsewhere = [other for other in keys if other.rpartition(".")[2] == last]
    if elsewhere:
        return elsewhere[:3]
    if close := get_close_matches(key, keys, n=1):
        return close
    lasts = {other.rpartition(".")[2] for other in keys}
    close = get_close_matches(last, sorted(lasts), n=1, cutoff=0.7)
    return [other for other in keys if close and other.rpartition(".")[2] == close[0]][:3]
