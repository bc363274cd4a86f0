"""Instructions: what the robot is asked to do, as a text and as the array that is observed.

An instruction is observed as its UTF-8 bytes, padded with zeros, so that it passes through vector
environments, datasets and replays as every other array does.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

INSTRUCTION: Final = "instruction"
"""Name of the observed array, uint8 [..., `INSTRUCTION_BYTES`]."""
INSTRUCTION_BYTES: Final = 128
"""Longest instruction, in bytes of UTF-8."""


def encode_instruction(text: str) -> NDArray[np.uint8]:
    """The bytes of a text, uint8 [`INSTRUCTION_BYTES`], padded with zeros.

    Raises:
        ValueError: if it is empty, too long or no line of printable text.
    """
    content = text.encode(errors="replace")
    if not text.strip() or not text.isprintable():
        raise ValueError(f"instruction {text[:80]!r}: give a line of printable text")
    if len(content) > INSTRUCTION_BYTES:
        raise ValueError(
            f"instruction {text[:60]!r} has {len(content)} bytes; at most {INSTRUCTION_BYTES} are observed"
        )
    return np.frombuffer(content.ljust(INSTRUCTION_BYTES, b"\0"), np.uint8).copy()


def decode_instruction(encoded: NDArray[np.uint8]) -> str:
    """The text of an observed instruction [`INSTRUCTION_BYTES`].

    Raises:
        ValueError: if it is no text.
    """
    try:
        return encoded.tobytes().rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"an instruction is no UTF-8 text: {encoded.tobytes()[:40]!r}") from error


def known_instructions(environment: Mapping[str, Any]) -> list[str]:
    """The instructions of an environment's description, with those of other scenes of the same data."""
    return [*environment.get("instructions", []), *environment.get("other_instructions", [])]
