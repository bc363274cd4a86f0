"""The verbs of the command line, one module each.

A verb's module has a docstring (its first line is the help line), a dataclass `Config`, `run(config)`
and, if the configuration has groups, `GROUPS`: for each group the dataclass of each of its choices.
A verb may have two words; `bench_sim.py` is `robot-rl bench sim`, and `robot-rl bench` lists its kin.
"""

VERBS: dict[str, tuple[str, ...]] = {
    "who collects": (
        "doctor",
        "collect",
        "states",
        "teleop",
        "record",
        "replay",
        "data derive",
        "data info",
        "data view",
        "data validate",
        "data merge",
        "data split",
        "data convert",
        "data repair",
    ),
    "who trains": ("train", "actor", "eval", "report", "demo"),
    "who deploys": ("robot", "robot keys", "robot latency", "deploy"),
    "who measures": (
        "bench sim",
        "bench update",
        "bench control",
        "bench record",
        "bench data",
        "bench methods",
        "bench table",
    ),
}
"""Verbs in the order of the listing, by the person who uses them."""
