"""Saying no, with a reason."""

from robot_rl.hardware.core.wording import one_line
from robot_rl.hardware.protocol.messages import Code


class Refusal(Exception):
    """A request that is not carried out; the arm does as before."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = one_line(reason, 500)
