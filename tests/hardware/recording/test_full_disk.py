"""A disk that is full loses what does not fit, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hardware.processes import ROOT


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_on_a_full_disk_what_fits_is_kept_and_committed_and_the_rest_is_counted(tmp_path: Path) -> None:
    """A real file system that fills up, in a mount namespace of the child's own."""
    command = f"{sys.executable} -m tests.hardware.recording.fill_disk {tmp_path}"
    script = f"mount -t tmpfs -o size=6m tmpfs {tmp_path} && {command}"
    child = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    if "unshare" in child.stderr or "mount:" in child.stderr:
        pytest.skip(f"no mount namespace to be had: {child.stderr.splitlines()[0]}")
    assert child.returncode == 0, child.stderr
    assert child.stdout == "done\n"
