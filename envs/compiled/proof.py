"""Whether our functions of linear algebra round as this machine's libraries do.

The libraries choose their kernels by the processor, and another version may order operations in
another way. So, once per process, both compute the inverses, pseudo-inverses and products of some
hundred matrices, and only if all bits are the same are ours used.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from robot_rl.envs.compiled.linalg import (
    SCRATCH,
    inv,
    inverse,
    multiply,
    multiply_vector,
    pinv,
    pseudo_inverse,
)
from robot_rl.envs.compiled.lu import LARGEST, SMALLEST
from robot_rl.envs.compiled.rows import WIDTH
from robot_rl.envs.compiled.sources import DIGEST
from robot_rl.envs.compiled.symbols import register_symbols

JOINTS = range(SMALLEST, LARGEST + 1)  # of the arms that the proof is about

Array = np.ndarray
Record = Any  # one element of an array of `SCRATCH`


def new_scratch() -> Array:
    """A record of `SCRATCH` [1] that says whether functions of ours may take the library's place."""
    scratch = np.zeros(1, dtype=SCRATCH)
    scratch["own"] = equal_bits()
    return scratch


@cache
def equal_bits() -> bool:
    """Compares all functions on all cases."""
    register_symbols()
    scratch = np.zeros(1, dtype=SCRATCH)
    return all(equal_on(mass, jac, scratch) for mass, jac in cases(np.random.default_rng(0)))


def cases(rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """Mass matrices [WIDTH, WIDTH], Jacobians [6, WIDTH], of which the rest is zero; the awkward ones too."""
    for case in range(160):
        n = JOINTS[case % len(JOINTS)]
        mass, jac = np.zeros((WIDTH, WIDTH)), np.zeros((6, WIDTH))
        root = rng.normal(size=(n, n)) * 10.0 ** rng.uniform(-1, 1, n)
        mass[:n, :n] = root @ root.T + 0.1 * np.eye(n)
        jac[:, :n] = rng.normal(size=(6, n))
        kind = case // len(JOINTS) % 10
        if kind == 1:
            mass[0, 0] *= 1e6
        elif kind == 2:  # singular to rounding, as in a stretched arm
            jac[5] = jac[4] * (1 + 1e-9) + jac[3]
        elif kind == 3:  # graded
            jac *= 10.0 ** rng.uniform(-6, 6, (6, 1))
        elif kind == 4:
            mass *= 1e-12
        elif kind == 5:
            mass *= 1e12
        elif kind == 6:  # an axis that is one of the world's
            jac[3:, 0] = 0.0, 0.0, 1.0
        elif kind == 7:
            jac[:, :n] = np.eye(6, n) + 1e-5 * rng.normal(size=(6, n))
        elif kind == 8:
            mass[:n, :n] = np.diag(rng.uniform(0.1, 1, n))
            jac[0] *= 1e-3
        elif kind == 9:  # of lower rank
            jac[2], jac[5] = jac[0], 0.0
        yield mass, jac


@njit(error_model="numpy")
def _same(library: Array, own: Array) -> bool:
    """Whether `library` [m, n] has the bits of that part of `own`, but for the signs of zeros and NaNs."""
    for i in range(library.shape[0]):
        for j in range(library.shape[1]):
            if library[i, j] != own[i, j] and library[i, j] == library[i, j]:
                return False
    return True


def _compiled(sources: int) -> Any:
    @njit(cache=True, error_model="numpy")
    def equal_on(mass: Array, jac: Array, scratches: Array) -> bool:
        """Whether the libraries and our functions compute the same of a mass matrix and a Jacobian."""
        assert sources
        scratch = scratches[0]
        n = WIDTH
        while mass[n - 1, n - 1] == 0.0:
            n -= 1
        library = mass[:n, :n].copy().T
        j = jac[:, :n].copy()
        for i in range(6):
            for k in range(n):
                scratch.jac_t[k, i] = j[i, k]
        library_inv = inv(library, scratch.ints, scratch.floats)
        if not inverse(mass, n, scratch.mass_inv, scratch) or not _same(library_inv, scratch.mass_inv):
            return False
        task = np.dot(np.dot(j, library_inv), j.T)
        multiply(jac, scratch.mass_inv, scratch.product, 6, n)
        multiply(scratch.product, scratch.jac_t, scratch.task, 6, n)
        if not _same(task, scratch.task):
            return False
        for start in (0, 3):
            rows = j[start : start + 3]
            block = np.dot(np.dot(rows, library_inv), rows.T)
            if not _same(block, scratch.task[start:, start:]):
                return False
            if pseudo_inverse(scratch.task, start, 3, scratch.block, scratch) and not _same(
                pinv(block, scratch.ints, scratch.floats), scratch.block
            ):
                return False
        full = pinv(task, scratch.ints, scratch.floats)
        if not pseudo_inverse(scratch.task, 0, 6, scratch.full, scratch):
            return True
        if not _same(full, scratch.full):
            return False
        multiply(scratch.mass_inv, scratch.jac_t, scratch.product, n, n)
        multiply(scratch.product, scratch.full, scratch.block, n, 6)
        multiply(scratch.block, jac, scratch.null_space, n, 6)
        null_space = np.dot(np.dot(library_inv, j.T).dot(full), j)
        if not _same(null_space, scratch.null_space):
            return False
        multiply_vector(mass, j[0], scratch.rows, n)
        x = np.dot(library, j[0])
        if not _same(x.reshape(1, n), scratch.rows):
            return False
        multiply_vector(scratch.null_space, x, scratch.rows, n)
        return _same(np.dot(null_space.T, x).reshape(1, n), scratch.rows)

    return equal_on


equal_on: Any = _compiled(DIGEST)
