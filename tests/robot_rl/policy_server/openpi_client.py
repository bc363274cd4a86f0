"""openpi's own client, in an environment of its own: it needs an older NumPy."""

import subprocess
import sys
from pathlib import Path


def make_openpi_client(folder: Path) -> Path:
    """A Python interpreter that has openpi-client."""
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    packages = ["openpi-client==0.1.2", "typing_extensions"]
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True)
    return python
