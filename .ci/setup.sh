#!/usr/bin/env bash
# Makes the virtual environment $1 with the pinned packages. Its Python is $2, or the newest supported one that is
# found, or else one that uv downloads.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
python=${2:-}
if [ -x "$venv/bin/python" ]; then
    version='import sys; print("%d.%d" % sys.version_info[:2])'
    if [ -n "$python" ] && [ "$("$python" -c "$version")" != "$("$venv/bin/python" -c "$version")" ]; then
        echo "$venv has another Python than $python: remove it first (rm -r $venv)" >&2
        exit 1
    fi
    python=$venv/bin/python
elif [ -n "$python" ]; then
    command -v "$python" >/dev/null || {
        echo "$python is missing: without PYTHON=… make takes the newest Python that it finds" >&2
        exit 1
    }
else
    python=$(.ci/python.sh || true)
fi

# Where no Python is there at all, this brings the release's own.
.ci/system-libraries.sh "$python"
python=${python:-$(.ci/python.sh || true)}

if [ -x "$venv/bin/python" ]; then
    :
elif [ -n "$python" ]; then
    "$python" -m venv "$venv"
else
    .ci/managed-python.sh "$venv"
fi
.ci/packages.sh "$venv"
