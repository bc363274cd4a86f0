"""The software e-stop: a thread that does nothing else, so that it stops the arm whatever the others do."""

import threading

import zmq

from robot_rl.hardware.core.stop_flag import StopFlag
from robot_rl.hardware.drivers.base import Driver, DriverError
from robot_rl.hardware.protocol.codec import ProtocolError, Stamper, decode_client, encode
from robot_rl.hardware.protocol.messages import Code, Done, Message, Mode, Refused, Stop
from robot_rl.hardware.protocol.sockets import Incoming, ServerSockets, reply
from robot_rl.hardware.realtime import MESSAGES, runs_first
from robot_rl.hardware.reception import Reception

_LOOK = 200
"""ms between two looks at whether to end."""


class EstopThread:
    """Answers on the `estop` socket, which it takes over until `close`.

    Anybody who could reach the socket may stop the arm: no greeting, no role, no lease.
    """

    def __init__(
        self, sockets: ServerSockets, driver: Driver, flag: StopFlag, reception: Reception, stamp: Stamper
    ) -> None:
        self._sockets = sockets
        self._socket = sockets.bind("estop")
        self._driver = driver
        self._flag = flag
        self._reception = reception
        self._stamp = stamp
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="estop", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether a stop would be heard."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; its socket is closed with the others. Safe to call twice and before `start`."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with runs_first(MESSAGES):
            while not self._closing.is_set():
                if self._socket.poll(_LOOK, zmq.POLLIN):
                    while incoming := self._sockets.receive(self._socket):
                        reply(self._socket, incoming.route, encode(self._answer(incoming)))

    def _answer(self, incoming: Incoming) -> Message:
        try:
            message = decode_client(incoming.frame)
        except ProtocolError as error:
            return self._stamp(Refused, code=error.code, reason=error.reason)
        if not isinstance(message, Stop):
            return self._stamp(
                Refused, id=message.id, code=Code.MODE, reason="this socket takes stop and nothing else"
            )
        self._flag.pull(self._reception.name_of(incoming, message.src), message.reason)
        try:
            self._driver.stop()
        except DriverError as error:
            reason = f"the arm did not take the stop: {error}"[:500]
            return self._stamp(Refused, id=message.id, code=Code.FAULT, reason=reason)
        return self._stamp(Done, id=message.id, mode=Mode.FAULT)
