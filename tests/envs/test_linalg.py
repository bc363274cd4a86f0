"""Our functions of linear algebra against the libraries that robosuite's functions call: the same bits."""

import numpy as np
import pytest
from numba import njit

from robot_rl.envs.compiled import compile_control, kernel, linalg, proof
from robot_rl.envs.compiled.rows import WIDTH
from tests.envs.test_compiled import actions, make


@pytest.fixture
def scratch() -> np.ndarray:
    """Where this machine's library rounds in another way, the library is what runs."""
    scratch = proof.new_scratch()
    if not scratch["own"][0]:
        pytest.skip("this machine's BLAS rounds in another way")
    return scratch


@njit
def own_pinv(matrix, out, scratch):
    return linalg.pseudo_inverse(matrix, 0, matrix.shape[0], out, scratch[0])


@njit
def library_pinv(matrix, scratch):
    return linalg.pinv(matrix.copy().T, scratch[0].ints, scratch[0].floats)


def awkward(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    matrix = rng.normal(size=(n, n))
    if kind == "symmetric":
        return matrix @ matrix.T
    if kind == "graded":
        return matrix * 10.0 ** rng.uniform(-9, 9, (n, 1))
    if kind == "rank":
        return matrix[:, :2] @ matrix[:2]
    if kind == "near singular":
        return matrix @ np.diag([*np.ones(n - 1), 1e-13]) @ matrix.T
    if kind == "diagonal":
        return np.diag(rng.uniform(0.1, 1, n))
    if kind == "zeros":
        return matrix * (rng.random((n, n)) < 0.5)
    return matrix * {"general": 1.0, "tiny": 1e-90, "huge": 1e90}[kind]


KINDS = ("general", "symmetric", "graded", "rank", "near singular", "diagonal", "zeros", "tiny", "huge")


@pytest.mark.parametrize("n", [3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_pseudo_inverse(kind: str, n: int, scratch: np.ndarray) -> None:
    rng = np.random.default_rng(n)
    covered = 0
    for _ in range(300):
        matrix, out = awkward(kind, n, rng), np.zeros((WIDTH, WIDTH))
        if own_pinv(matrix, out, scratch):
            covered += 1
            assert np.array_equal(out[:n, :n], library_pinv(np.ascontiguousarray(matrix.T), scratch))
    assert covered > 250 or kind == "zeros"


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((6, 6)), np.eye(6), np.full((6, 6), np.nan), np.eye(6) * 1e200, np.full((6, 6), np.inf)],
)
def test_what_is_left_to_the_library(matrix: np.ndarray, scratch: np.ndarray) -> None:
    assert not own_pinv(matrix, np.zeros((WIDTH, WIDTH)), scratch)


def test_all_cases_of_the_proof_with_other_numbers(scratch: np.ndarray) -> None:
    for seed in range(1, 6):
        for mass, jac in proof.cases(np.random.default_rng(seed)):
            assert proof.equal_on(mass, jac, scratch)


@njit
def torques(arms, bias, force, pull, scratch):
    took = kernel._osc_torque_own(arms[0], bias, force, pull, scratch[0])
    own = arms[0].torque.copy()
    kernel._osc_torque_library(arms[0], bias, force, pull, scratch[0].ints, scratch[0].floats)
    return took, own, arms[0].torque.copy()


@pytest.mark.parametrize("robot", ["Panda", "UR5e"])
@pytest.mark.parametrize("uncoupled", [True, False])
def test_torques(robot: str, uncoupled: bool, scratch: np.ndarray) -> None:
    env = make("Lift", robot)
    control = compile_control(env)
    arms, bias = control._arrays[0], env.sim.data._data.qfrc_bias
    rng = np.random.default_rng(0)
    for action in actions(env, 30):
        env.step(action)
        arms["uncoupled"] = uncoupled
        took, own, library = torques(arms, bias, rng.normal(size=6), rng.normal(size=arms[0]["n"]), scratch)
        assert took
        assert np.array_equal(own, library)
        arms["uncoupled"] = True


def test_without_our_functions_the_trajectory_is_the_same() -> None:
    ours, library = make(), make()
    compile_control(ours)
    compile_control(library)._arrays[-1]["own"] = False
    for action in actions(ours, 20):
        ours.step(action)
        library.step(action)
        assert np.array_equal(ours.sim.data.qpos, library.sim.data.qpos)


def test_one_wrong_bit_refutes(scratch: np.ndarray) -> None:
    a = np.ones((2, 2))
    b = np.zeros((WIDTH, WIDTH))
    b[:2, :2] = 1.0
    assert proof._same(a, b)
    b[1, 1] = np.nextafter(1.0, 2.0)
    assert not proof._same(a, b)
