"""A server with one camera, to be killed: prints the camera's process id and waits."""

import sys
import time
from pathlib import Path

import zmq

from robot_rl.hardware.cameras.camera_set import CameraSet
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.sockets import ServerSockets
from tests.hardware.cameras.conftest import PATIENT, pattern


def main(folder: Path) -> None:
    server = ServerSockets(zmq.Context.instance(), parse(f"ipc://{folder}/robot"))
    with CameraSet([pattern("wrist")], server.bind("image"), lambda what, text: None, PATIENT) as cameras:
        while (pid := cameras.status()["wrist"].pid) is None:
            time.sleep(0.05)
        print(pid, flush=True)
        time.sleep(1000)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
