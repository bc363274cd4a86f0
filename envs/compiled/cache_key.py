"""A number that changes with the compiled sources, so that numba's cache on disk is never stale.

numba recompiles a cached function when its own file has changed, but not when a function that it calls has
changed in another file. The values that a function closes over are part of the cache's key, so the cached
functions of this package close over `DIGEST`.
"""

import hashlib
from pathlib import Path
from typing import Final


def digest(folder: Path = Path(__file__).parent) -> int:
    """Hash of all compiled sources in this folder and its subfolders; not 0."""
    content = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        if b"@njit" in source or b"@intrinsic" in source:
            content.update(source)
    return int.from_bytes(content.digest()[:7], "big") | 1


DIGEST: Final = digest()
