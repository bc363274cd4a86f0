"""Checks once per process that this package gives the same bits as the machine's BLAS and LAPACK.

OpenBLAS chooses its kernels by the processor, and another version may order operations differently. So
both sides compute the inverses, pseudo-inverses and products of 160 random and awkward matrices. If one
bit differs, LAPACK is called instead.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from robot_rl.envs.compiled import linalg
from robot_rl.envs.compiled.cache_key import DIGEST
from robot_rl.envs.compiled.lapack.lu import LARGEST, SMALLEST
from robot_rl.envs.compiled.lapack.simd import WIDTH
from robot_rl.envs.compiled.lapack.small_matrices import SMALL_SCRATCH, inv, matmul, matvec, pinv
from robot_rl.envs.compiled.symbols import register_symbols

JOINTS = range(SMALLEST, LARGEST + 1)  # numbers of joints of the arms in the test cases

Array = np.ndarray


@cache
def bit_identical() -> bool:
    """Whether all test cases give the same bits as the libraries."""
    register_symbols()
    work = workspace()
    return all(same_on(mass, jac, *work) for mass, jac in cases(np.random.default_rng(0)))


def workspace() -> tuple[Array, Array, Array]:
    """The last arguments of `same_on`."""
    return np.zeros(linalg.INTS, np.int32), np.zeros(linalg.FLOATS), np.zeros(1, SMALL_SCRATCH)


def cases(rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """Mass matrices [WIDTH, WIDTH] and Jacobians [6, WIDTH], padded with zeros.

    Every tenth group is ordinary; the others are badly scaled, singular, diagonal or of low rank.
    """
    for case in range(160):
        n = JOINTS[case % len(JOINTS)]
        mass, jac = np.zeros((WIDTH, WIDTH)), np.zeros((6, WIDTH))
        root = rng.normal(size=(n, n)) * 10.0 ** rng.uniform(-1, 1, n)
        mass[:n, :n] = root @ root.T + 0.1 * np.eye(n)
        jac[:, :n] = rng.normal(size=(6, n))
        kind = case // len(JOINTS) % 10
        if kind == 1:
            mass[0, 0] *= 1e6
        elif kind == 2:  # nearly singular, as for a stretched arm
            jac[5] = jac[4] * (1 + 1e-9) + jac[3]
        elif kind == 3:  # graded
            jac *= 10.0 ** rng.uniform(-6, 6, (6, 1))
        elif kind == 4:
            mass *= 1e-12
        elif kind == 5:
            mass *= 1e12
        elif kind == 6:  # a joint axis along a world axis
            jac[3:, 0] = 0.0, 0.0, 1.0
        elif kind == 7:
            jac[:, :n] = np.eye(6, n) + 1e-5 * rng.normal(size=(6, n))
        elif kind == 8:
            mass[:n, :n] = np.diag(rng.uniform(0.1, 1, n))
            jac[0] *= 1e-3
        elif kind == 9:  # rank-deficient
            jac[2], jac[5] = jac[0], 0.0
        yield mass, jac


@njit(error_model="numpy")
def _same(library: Array, small: Array) -> bool:
    """Whether the top left [m, n] of `small` equals `library` [m, n], apart from NaNs and signs of zeros."""
    for i in range(library.shape[0]):
        for j in range(library.shape[1]):
            if library[i, j] != small[i, j] and library[i, j] == library[i, j]:
                return False
    return True


def _compiled(sources: int) -> Any:
    @njit(cache=True, error_model="numpy")
    def same_on(mass: Array, jac: Array, ints: Array, floats: Array, scratches: Array) -> bool:
        """Whether every intermediate result of the torques is the same on both sides.

        Args:
            mass, jac: one of `cases`.
            ints, floats, scratches: `workspace`.
        """
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
        library_inv = linalg.inv(library, ints, floats)
        if not inv(mass, n, scratch.mass_inv, scratch) or not _same(library_inv, scratch.mass_inv):
            return False
        task = np.dot(np.dot(j, library_inv), j.T)
        matmul(jac, scratch.mass_inv, scratch.product, 6, n)
        matmul(scratch.product, scratch.jac_t, scratch.task, 6, n)
        if not _same(task, scratch.task):
            return False
        for start in (0, 3):
            rows = j[start : start + 3]
            block = np.dot(np.dot(rows, library_inv), rows.T)
            if not _same(block, scratch.task[start:, start:]):
                return False
            if pinv(scratch.task, start, 3, scratch.block, scratch) and not _same(
                linalg.pinv(block, ints, floats), scratch.block
            ):
                return False
        full = linalg.pinv(task, ints, floats)
        if not pinv(scratch.task, 0, 6, scratch.full, scratch):
            return True
        if not _same(full, scratch.full):
            return False
        matmul(scratch.mass_inv, scratch.jac_t, scratch.product, n, n)
        matmul(scratch.product, scratch.full, scratch.block, n, 6)
        matmul(scratch.block, jac, scratch.null_space, n, 6)
        null_space = np.dot(np.dot(library_inv, j.T).dot(full), j)
        if not _same(null_space, scratch.null_space):
            return False
        matvec(mass, j[0], scratch.rows, n)
        x = np.dot(library, j[0])
        if not _same(x.reshape(1, n), scratch.rows):
            return False
        matvec(scratch.null_space, x, scratch.rows, n)
        return _same(np.dot(null_space.T, x).reshape(1, n), scratch.rows)

    return same_on


same_on: Any = _compiled(DIGEST)
