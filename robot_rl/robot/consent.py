"""Asks the person at the terminal before a command moves the arm."""

import sys

from robot_rl.errors import UserError


def ask_consent(motion: str, *, given: bool, option: str) -> None:
    """Say how the arm will move, and wait for Enter.

    Args:
        motion: what the arm will do.
        given: whether the person has agreed on the command line.
        option: name of the option that does this.

    Raises:
        UserError: if nobody can be asked, or the input ends.
    """
    print(
        f"{motion}\nKeep the space around it clear, and a hand on the emergency stop. "
        "Ctrl-C brings the arm to rest.",
        flush=True,
    )
    if given:
        return
    try:
        if sys.stdin.isatty():
            input("Enter begins: ")
            return
    except EOFError:
        pass
    raise UserError(f"the arm moves only with the operator's consent: press Enter, or give {option}=true")
