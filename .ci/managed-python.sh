#!/usr/bin/env bash
# Makes the virtual environment $1 with a Python that uv downloads, where the system has none that is supported.
set -euo pipefail

venv=$1
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    # Any Python can install uv.
    python3 -m venv --clear "$venv-uv"
    "$venv-uv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
    uv=$venv-uv/bin/uv
fi
"$uv" venv --quiet --seed --managed-python --python '>=3.11,<3.15' "$venv" || {
    echo "Python 3.11 to 3.14 is needed. None was found here, and uv could not download one." >&2
    echo "Install one and name it: make PYTHON=/path/to/python3.13" >&2
    exit 1
}
