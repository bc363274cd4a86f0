"""The commands of `robot-rl`, one module each.

A command's module has a docstring (its first line is the help line), a dataclass `Config`, `run(config)`
and, if the configuration has groups, `GROUPS`: for each group the dataclass of each of its choices. One
with `output_directory(config)` takes `--multirun`; its `check_options(config)` refuses options that do not go
together before the first run of a sweep or search starts.
A command may have two words: `bench_sim.py` is `robot-rl bench sim`. A module whose name begins with `_` is
a part of a command.
"""
