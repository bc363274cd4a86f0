"""Software e-stop: a dedicated thread that stops the arm independently of the control loop."""

import threading
import traceback

import zmq

from robot_rl.hardware.core.supervisor import StopQueue
from robot_rl.hardware.drivers.driver import Driver, DriverError
from robot_rl.hardware.protocol.codec import ProtocolError, Stamper, decode_client, encode
from robot_rl.hardware.protocol.messages import Code, Done, Message, Mode, Refused, Stop
from robot_rl.hardware.protocol.sockets import Incoming, ServerSockets, reply
from robot_rl.hardware.realtime import MESSAGES, realtime_priority
from robot_rl.hardware.request_router import RequestRouter

_POLL = 200
"""Interval between checks whether to end, ms."""


class EstopThread:
    """Serves the `estop` socket until `close`.

    Any client that can reach the socket may stop the arm: no handshake, role or lease is needed.
    """

    def __init__(
        self,
        sockets: ServerSockets,
        driver: Driver,
        stop_queue: StopQueue,
        router: RequestRouter,
        stamp: Stamper,
    ) -> None:
        self._sockets = sockets
        self._socket = sockets.bind("estop")
        self._driver = driver
        self._stop_queue = stop_queue
        self._router = router
        self._stamp = stamp
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="estop", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs; if not, stops are not received."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. The socket is closed by `ServerSockets`. Safe to call twice and before `start`."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with realtime_priority(MESSAGES):
            while not self._closing.is_set():
                if self._socket.poll(_POLL, zmq.POLLIN):
                    while incoming := self._sockets.receive(self._socket):
                        reply(self._socket, incoming.route, encode(self._answer(incoming)))

    def _answer(self, incoming: Incoming) -> Message:
        try:
            message = decode_client(incoming.frame)
        except ProtocolError as error:
            return self._stamp(Refused, code=error.code, reason=error.reason)
        if not isinstance(message, Stop):
            return self._stamp(Refused, id=message.id, code=Code.MODE, reason="this socket accepts only stop")
        self._stop_queue.put(self._router.client_name(incoming, message.src), message.reason)
        try:
            self._driver.stop()
        except DriverError as error:
            return self._not_accepted(message, str(error))
        except Exception as error:
            # A bug of the driver. This thread goes on, or no further stop would be heard.
            traceback.print_exc()
            return self._not_accepted(message, repr(error))
        return self._stamp(Done, id=message.id, mode=Mode.FAULT)

    def _not_accepted(self, message: Stop, why: str) -> Message:
        reason = f"the arm did not accept the stop: {why}"[:500]
        return self._stamp(Refused, id=message.id, code=Code.FAULT, reason=reason)
