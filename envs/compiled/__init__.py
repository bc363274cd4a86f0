"""robosuite's control step as one compiled loop, bit-identical to robosuite's own.

    control = compile_control(env)   # any environment from `robosuite.make`
    obs, reward, done, info = env.step(action)   # the same values, several times faster

Raises `NotCompilable`, with the reason in one line, if an environment needs robosuite's own loop.
"""

from robot_rl.envs.compiled.control import CompiledControl, compile_control
from robot_rl.envs.compiled.symbols import NotCompilable
from robot_rl.envs.compiled.worker_pool import WorkerPool

__all__ = ["CompiledControl", "NotCompilable", "WorkerPool", "compile_control"]
