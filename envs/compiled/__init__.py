"""robosuite's control step as one compiled loop, with robosuite's own numbers.

    control = compile_control(env)   # any robosuite environment, as `robosuite.make` made it
    obs, reward, done, info = env.step(action)   # the same values, several times faster

Raises `NotCompilable`, with the reason in one line, where only robosuite's own loop will do.
"""

from .control import CompiledControl, compile_control
from .crew import Crew
from .symbols import NotCompilable

__all__ = ["CompiledControl", "Crew", "NotCompilable", "compile_control"]
