"""A refused request and its reason."""

from robot_rl.hardware.core.events import one_line
from robot_rl.hardware.protocol.messages import Code


class Refusal(Exception):
    """Raised when a request is not carried out; the arm's motion does not change."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = one_line(reason, 500)
