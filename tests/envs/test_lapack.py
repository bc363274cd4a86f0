"""Our routines for small matrices against the libraries that robosuite's functions call: the same bits."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from robot_rl.envs.compiled import compile_control, linalg, osc
from robot_rl.envs.compiled.lapack import small_matrices, verify
from robot_rl.envs.compiled.lapack.simd import WIDTH
from robot_rl.envs.compiled.lapack.small_matrices import small_torque
from tests.envs.test_compiled import actions, make


@pytest.fixture
def scratch() -> np.ndarray:
    """If this machine's libraries round differently, they are used."""
    scratch = osc.new_scratch()
    if not scratch["replace_lapack"][0]:
        pytest.skip("this machine's BLAS rounds differently")
    return scratch


@njit
def small_pinv(matrix, out, scratch):
    return small_matrices.pinv(matrix, 0, matrix.shape[0], out, scratch[0].small)


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
        if small_pinv(matrix, out, scratch):
            covered += 1
            assert np.array_equal(out[:n, :n], library_pinv(np.ascontiguousarray(matrix.T), scratch))
    assert covered > 250 or kind == "zeros"


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((6, 6)), np.eye(6), np.full((6, 6), np.nan), np.eye(6) * 1e200, np.full((6, 6), np.inf)],
)
def test_what_is_left_to_the_library(matrix: np.ndarray, scratch: np.ndarray) -> None:
    assert not small_pinv(matrix, np.zeros((WIDTH, WIDTH)), scratch)


def test_all_cases_with_other_numbers(scratch: np.ndarray) -> None:
    work = verify.workspace()
    for seed in range(1, 6):
        for mass, jac in verify.cases(np.random.default_rng(seed)):
            assert verify.same_on(mass, jac, *work)


@njit
def torques(arms, bias, force, pull, scratch):
    took = small_torque(arms[0], bias, force, pull, scratch[0].small)
    small = arms[0].torque.copy()
    osc.library_torque(arms[0], bias, force, pull, scratch[0].ints, scratch[0].floats)
    return took, small, arms[0].torque.copy()


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
        took, small, library = torques(arms, bias, rng.normal(size=6), rng.normal(size=arms[0]["n"]), scratch)
        assert took
        assert np.array_equal(small, library)
        arms["uncoupled"] = True


def test_with_lapack_the_trajectory_is_the_same() -> None:
    ours, library = make(), make()
    compile_control(ours)
    compile_control(library)._arrays[-1]["replace_lapack"] = False
    for action in actions(ours, 20):
        ours.step(action)
        library.step(action)
        assert np.array_equal(ours.sim.data.qpos, library.sim.data.qpos)


def test_one_wrong_bit_is_found(scratch: np.ndarray) -> None:
    a = np.ones((2, 2))
    b = np.zeros((WIDTH, WIDTH))
    b[:2, :2] = 1.0
    assert verify._same(a, b)
    b[1, 1] = np.nextafter(1.0, 2.0)
    assert not verify._same(a, b)


_ROLLOUT = """
import sys
import numpy as np
import robot_rl.envs
robot_rl.envs.__path__.insert(0, sys.argv[1])
from robot_rl.envs.compiled import compile_control, osc
from tests.envs.test_compiled import actions, make
assert osc.__file__.startswith(sys.argv[1])
assert "robot_rl.envs.compiled.lapack" not in sys.modules
env = make()
compile_control(env)
np.save(sys.argv[2], [np.append(env.step(action)[1], env.sim.data.qpos) for action in actions(env, 20)])
"""


@pytest.mark.full  # compiles the control loop
def test_without_the_folder_the_control_loop_gives_the_same_bits(tmp_path: Path) -> None:
    source = Path(osc.__file__).parent
    shutil.copytree(source, tmp_path / "compiled", ignore=shutil.ignore_patterns("lapack", "__pycache__"))
    out = tmp_path / "states.npy"
    subprocess.run(
        [sys.executable, "-c", _ROLLOUT, str(tmp_path), str(out)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"NUMBA_OPT": "1"},  # compiles in a fraction of the time, with the same roundings
        check=True,
    )
    env = make()
    compile_control(env)
    expected = [np.append(env.step(action)[1], env.sim.data.qpos) for action in actions(env, 20)]
    assert np.array_equal(np.load(out), expected)


def test_one_file_imports_the_folder() -> None:
    folder = Path(osc.__file__).parent
    outside = [path for path in folder.parent.rglob("*.py") if "lapack" not in path.parts]
    assert [p.name for p in outside if "compiled.lapack" in p.read_text(encoding="utf-8")] == ["osc.py"]
