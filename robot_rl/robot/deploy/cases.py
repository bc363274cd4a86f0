"""Scenes that a person prepares again, shown by images: `robot-rl states data=…` writes them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from robot_rl.robot.deploy.resets import WaitUntilReady

_IMAGE: Final = re.compile(r"(\d+)(\D.*)?\.(png|jpe?g)", re.IGNORECASE)


def read_cases(folder: Path) -> list[list[Path]]:
    """The images of each case, whose number begins their names: `000_front.png`, `000_wrist.png`.

    Raises:
        ValueError: if there is no such image.
    """
    cases: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if found := _IMAGE.fullmatch(path.name):
            cases.setdefault(int(found[1]), []).append(path)
    if not cases:
        raise ValueError(
            f"cases={folder} has no images such as 000_front.png; `robot-rl states data=… out={folder}` "
            "writes those of a dataset's failures"
        )
    return [cases[number] for number in sorted(cases)]


def show_case(
    cases: list[list[Path]], wait_until_ready: WaitUntilReady, say: Callable[[str], None]
) -> WaitUntilReady:
    """Tell the operator which case to prepare before waiting for the scene; the cases take turns."""

    def show_and_wait(number: int) -> None:
        case = number % len(cases)
        say(f"episode {number}: the scene of case {case}, {', '.join(map(str, cases[case]))}")
        wait_until_ready(number)

    return show_and_wait
