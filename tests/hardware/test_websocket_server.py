"""A server in a thread ends when it is closed, whenever that is."""

import asyncio
import threading

from robot_rl.hardware.websocket_server import ServerThread


class SlowServer(ServerThread):
    """One whose start takes until `go`."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.starting, self.go = threading.Event(), threading.Event()

    async def _serve(self) -> None:
        ending = asyncio.Event()
        self.starting.set()
        await asyncio.to_thread(self.go.wait)
        self._end_by(ending)
        self._listening.set_result(1)
        await ending.wait()


def test_a_server_that_is_closed_while_it_starts_ends() -> None:
    server = SlowServer()
    started = threading.Thread(target=server.start)
    started.start()
    server.starting.wait()
    closed = threading.Thread(target=server.close)
    closed.start()
    server.go.set()
    closed.join()
    started.join()
    server.check()


def test_a_server_that_serves_ends_when_it_is_closed() -> None:
    server = SlowServer()
    server.go.set()
    assert server.start() == 1
    server.close()
    server.check()
