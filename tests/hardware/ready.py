"""The line by which a server's process says that it answers."""

from robot_rl.hardware.protocol.messages import State


class Ready:
    """A server's state callback that prints `ready` at the first tick: before it, nobody answers."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, _: State) -> None:
        if not self._said:
            self._said = True
            print("ready", flush=True)
