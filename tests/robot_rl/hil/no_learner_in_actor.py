"""Plugin that makes forbidden imports of an actor fail, including imports inside functions."""

import sys
import tomllib
from pathlib import Path

NOTE = "learner modules are blocked in this actor"
_CONTRACTS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))[
    "tool"
]["importlinter"]["contracts"]
(FORBIDDEN,) = (
    contract["forbidden_modules"]
    for contract in _CONTRACTS
    if contract["name"] == "a remote actor imports no method and no learner"
)


class ForbiddenImports:
    """Import finder that is asked before all others."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if any(name == module or name.startswith(f"{module}.") for module in FORBIDDEN):
            raise ImportError(f"an actor imports {name}")


if sys.argv[1:2] == ["actor"]:
    assert not [module for module in FORBIDDEN if module in sys.modules]
    sys.meta_path.insert(0, ForbiddenImports)  # type: ignore[arg-type]
    print(NOTE, file=sys.stderr, flush=True)
