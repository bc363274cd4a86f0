"""What a request to a policy server may hold. It is untrusted: what does not fit is refused in one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.policy_client.codec import (
    BATCH,
    BULK,
    MAX_CHUNKS,
    NOISE,
    RETURN_FEATURES,
    SAMPLES,
    SEED,
    MessageError,
)

MAX_SAMPLES: Final = 64
"""Largest number of samples in one request."""
MAX_ROWS: Final = 256
"""Largest number of observations in one request."""
RESERVED: Final = (NOISE, SAMPLES, SEED, BULK, BATCH, RETURN_FEATURES)


@dataclass(frozen=True)
class Query:
    """A request that was checked."""

    obs: Mapping[str, NDArray[Any]]
    """Observations with their histories, [B, To, …] each, or the base's features of them [B, D]."""
    samples: int
    """Samples N of the base for each; 0 if only its features are asked for."""
    noise: NDArray[np.float32] | None
    """Their noise [B, N, Hn, Dn]; drawn if None."""
    seed: int | None
    """Seed of the drawn noise."""
    bulk: bool
    """Whether the reply has all samples and their noise."""
    batched: bool = False
    """Whether the arrays of the reply have the axis B; without it, B is 1."""
    features: bool = False
    """Whether the reply has the base's features of the observations."""
    prompts: tuple[str, ...] = ()
    """The B instructions, for a policy that is given them as text."""

    @property
    def rows(self) -> int:
        """B, the number of its observations."""
        return len(next(iter(self.obs.values())))


def parts_of(numbers: Sequence[int], queries: Sequence[Query]) -> list[list[int]]:
    """Numbers of queries in parts that together ask for no more than a single query may."""
    parts: list[list[int]] = []
    rows = chunks = MAX_CHUNKS
    for number in numbers:
        query = queries[number]
        rows, chunks = rows + query.rows, chunks + query.rows * query.samples
        if rows > MAX_ROWS or chunks > MAX_CHUNKS:
            parts.append([])
            rows, chunks = query.rows, query.rows * query.samples
        parts[-1].append(number)
    return parts


class RequestReader:
    """Reads the parts of a request; every method raises MessageError, with one line for the client."""

    def __init__(
        self,
        request: Mapping[str, Any],
        observed: Sequence[str],
        ignored: Sequence[str],
        steps: int,
    ) -> None:
        """Check the names, and find out whether it is a batch.

        Args:
            request: a map that was received.
            observed: keys of the policy's observations.
            ignored: other keys that it may have, besides the reserved ones.
            steps: observation steps To of the policy; 0 if its observations have no such axis.
        """
        self._request, self._steps = request, steps
        known = (*observed, *ignored, *RESERVED)
        if unknown := [name for name in request if name not in known]:
            raise MessageError(f"unknown key {unknown[0]!r:.60}; this policy observes {', '.join(observed)}")
        self.rows = self.integer(BATCH, 1, 1, MAX_ROWS) if BATCH in request else None
        """Number of observations, or None for one without the axis B."""
        least = 0 if request.get(RETURN_FEATURES) is True else 1
        self.samples = self.integer(SAMPLES, 1, least, MAX_SAMPLES)
        seed = self.integer(SEED, -1, 0, 2**63 - 1)
        self.seed = seed if seed >= 0 else None

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """An integer within bounds."""
        value = self._request.get(name, default)
        if name in self._request and (type(value) is not int or not least <= value <= most):
            # An array's representation has several lines.
            found = " ".join(repr(value).split())
            raise MessageError(f"{name} is {found:.40}; send an integer from {least} to {most}")
        return int(value)

    def flag(self, name: str) -> bool:
        """True or false, by default false."""
        asked = self._request.get(name, False)
        if not isinstance(asked, bool):
            raise MessageError(f"{name} is true or false")
        return asked

    def floats(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Finite observed numbers [B, To, *shape]."""
        found = self.array(name, shape)
        if found.dtype.kind != "f":
            raise MessageError(f"{name} has type {found.dtype}; send floats")
        return _finite(name, found)

    def image(self, name: str, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Images [B, To, H, W, 3] of a size [H, W]."""
        return self.uint8(name, (*size, 3)).copy()

    def uint8(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """An observed array of bytes [B, To, *shape]."""
        found = self.array(name, shape)
        if found.dtype != np.uint8:
            raise MessageError(f"{name} has type {found.dtype}; send uint8")
        return found

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An observed array [B, To, *shape]."""
        steps, rows, value = self._steps, self.rows, self._request.get(name)
        if name not in self._request:
            raise MessageError(f"{name} is missing")
        if not isinstance(value, np.ndarray):
            raise MessageError(f"{name} is no array")
        whole = (steps, *shape) if steps else shape
        whole = whole if rows is None else (rows, *whole)
        if rows is None and steps == 1 and value.shape == shape:
            value = value[None]
        if value.shape != whole:
            first = f"the last {steps} frames, oldest first, of " if steps > 1 else ""
            wanted = f"{first}{list(shape)}" if rows is None else f"{list(whole)}"
            raise MessageError(f"{name} has shape {list(value.shape)}; send {wanted}")
        return value[None] if rows is None else value

    def noise(self, shape: tuple[int, int] | None, why_none: str) -> NDArray[np.float32] | None:
        """Noise [B, N, Hn, Dn] of a `shape` [Hn, Dn], if there is some; the N are the samples from then on.

        `why_none` says why a policy takes none; its shape is then None.
        """
        if NOISE not in self._request:
            return None
        if shape is None:
            raise MessageError(f"{NOISE} cannot be given: {why_none}")
        rows, value = self.rows, self._request[NOISE]
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            raise MessageError(f"{NOISE} is an array of finite floats")
        found, wanted = list(value.shape), f"[{rows}, N, {shape[0]}, {shape[1]}], N at most {MAX_SAMPLES}"
        if rows is None:
            wanted = (
                f"{list(shape)}, {[shape[1]]} to repeat it over the chunk, or N of {list(shape)}, "
                f"at most {MAX_SAMPLES}"
            )
            if value.shape == (shape[1],):
                value = np.broadcast_to(value, shape)
            value = value[None, None] if value.shape == shape else value[None]
        fits = value.ndim == 4 and value.shape[2:] == shape and 1 <= value.shape[1] <= MAX_SAMPLES
        if not fits or len(value) != (rows or 1):
            raise MessageError(f"{NOISE} has shape {found}; send {wanted}")
        if SAMPLES in self._request and self.samples != value.shape[1]:
            raise MessageError(f"{NOISE} is for {value.shape[1]} samples, {SAMPLES} is {self.samples}")
        self.samples = value.shape[1]
        return _finite(NOISE, value)

    def check_size(self) -> None:
        """Check that one pass through the policy can answer it; `noise`, which may set N, is read before."""
        if (self.rows or 1) * self.samples > MAX_CHUNKS:
            raise MessageError(
                f"{self.rows} observations of {self.samples} samples each are too much for one request; ask "
                f"for {MAX_CHUNKS} chunks at most"
            )


def _finite(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """The values in single precision, in which a large double is infinite."""
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    if not np.isfinite(found).all():
        raise MessageError(f"{name} has a value that is not finite")
    return found
