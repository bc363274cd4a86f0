"""robosuite's control step as one compiled loop, with robosuite's own numbers.

    control = compile_control(env)   # any robosuite environment, as `robosuite.make` made it
    obs, reward, done, info = env.step(action)   # the same values, several times faster

Raises `NotCompilable`, with the reason in one line, where only robosuite's own loop will do.
"""

from robot_rl.envs.compiled.control import CompiledControl, compile_control
from robot_rl.envs.compiled.symbols import NotCompilable
from robot_rl.envs.compiled.worker_pool import WorkerPool

__all__ = ["CompiledControl", "NotCompilable", "WorkerPool", "compile_control"]
