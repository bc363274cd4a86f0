"""openpi's own client, in its own environment: it needs an older NumPy."""

import subprocess
import sys
from pathlib import Path

_PATIENCE = 120.0


def make_openpi_client(folder: Path) -> Path:
    """A Python interpreter that has openpi-client."""
    uv, python = [sys.executable, "-m", "uv"], folder / "venv" / "bin" / "python"
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
    packages = ["openpi-client==0.1.2", "typing_extensions"]
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True)
    return python


def run_openpi_client(folder: Path, process: "subprocess.Popen[str]", program: str) -> None:
    """Run a program with openpi's client as `policy` and its metadata as `about`, then kill the server.

    `process` is a `robot-rl serve` whose first line was not read yet.
    """
    try:
        python = make_openpi_client(folder)
        assert process.stdout
        port = process.stdout.readline().strip().rsplit(":", 1)[1]
        script = (
            "import numpy as np\n"
            "from openpi_client.action_chunk_broker import ActionChunkBroker\n"
            "from openpi_client.websocket_client_policy import WebsocketClientPolicy\n"
            f"policy = WebsocketClientPolicy('127.0.0.1', {port})\n"
            f"about = policy.get_server_metadata()\n{program}print('served')\n"
        )
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=_PATIENCE)
        assert done.stdout.strip() == "served", done.stderr
    finally:
        process.kill()
        process.wait()
