"""Exit codes, and the one line that a user reads."""

import errno
import resource
from pathlib import Path

import pytest

from robot_rl.errors import UserError, as_user_errors, report


def raiser(error: BaseException, cause: BaseException | None = None):
    def action() -> None:
        raise error from cause

    return action


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("episodes=0: ask for at least 1"), "episodes=0: ask for at least 1"),
        (KeyError("no such camera"), "no such camera"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.zarr"), "x.zarr: no such file"),
        (PermissionError(errno.EACCES, "Permission denied", b"y"), "y: permission denied"),
        (UserError("as it is"), "as it is"),
        (OverflowError("Python integer 10 out of bounds"), "a number that was given is too large"),
    ],
)
def test_errors_of_arguments_become_user_errors(error: Exception, message: str) -> None:
    with pytest.raises(UserError, match=message), as_user_errors():
        raise error


def test_faults_of_the_program_stay_what_they_are() -> None:
    with pytest.raises(TypeError), as_user_errors():
        raise TypeError("a fault")
    with pytest.raises(ValueError, match="not built from arguments"):
        report(raiser(ValueError("not built from arguments")))


def test_user_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(raiser(UserError("two\n  lines"))) == 2
    assert capsys.readouterr().err == "robot-rl: two lines\n"


def test_disk_full_wherever_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "runs/x/metrics.csv")
    assert report(raiser(full)) == 2
    assert "the disk is full while writing runs/x/metrics.csv; free some space" in capsys.readouterr().err
    assert report(raiser(RuntimeError("wrapped"), full)) == 2
    with pytest.raises(OSError, match="Input/output"):
        report(raiser(OSError(errno.EIO, "Input/output error")))


def test_disk_full_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")

    def action() -> None:
        with open("/dev/full", "w") as file:
            file.write("x")

    assert report(action) == 2
    assert "the disk is full" in capsys.readouterr().err


def test_a_file_that_is_too_large_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> None:
        (tmp_path / "large").write_bytes(bytes(2000))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        status = report(action)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a file is larger than the file system, or `ulimit -f`, allows" in line


def test_a_package_that_is_not_installed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """As on a robot's computer, which has a part of the program only."""
    assert report(raiser(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"))) == 2
    assert "needs the package torch, which is not installed" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        report(raiser(ModuleNotFoundError("No module named 'robot_rl.x'", name="robot_rl.x")))


def test_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(raiser(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBOT_RL_DEBUG", "1")
    with pytest.raises(UserError):
        report(raiser(UserError("x")))
    with pytest.raises(KeyboardInterrupt):
        report(raiser(KeyboardInterrupt()))
