"""A plugin that refuses an actor the imports that the layering forbids it, also those inside of functions."""

import sys
import tomllib
from pathlib import Path

NOTE = "an actor without learner's modules"
_CONTRACTS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))[
    "tool"
]["importlinter"]["contracts"]
(FORBIDDEN,) = (
    contract["forbidden_modules"]
    for contract in _CONTRACTS
    if contract["name"] == "a remote actor imports no method and no learner"
)


class Refuse:
    """A finder that comes before all others."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if any(name == module or name.startswith(f"{module}.") for module in FORBIDDEN):
            raise ImportError(f"an actor imports {name}")


if sys.argv[1:2] == ["actor"]:
    assert not [module for module in FORBIDDEN if module in sys.modules]
    sys.meta_path.insert(0, Refuse)  # type: ignore[arg-type]
    print(NOTE, file=sys.stderr, flush=True)
