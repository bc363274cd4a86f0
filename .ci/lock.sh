#!/usr/bin/env bash
# Pins one version of each package in constraints.txt, which suits all supported Pythons: uv is $1. Versions stay
# as they are where they can; further arguments go to uv (`--upgrade`, `--upgrade-package NAME`).
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$1
shift
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
cp constraints.txt "$pins"
"$uv" pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --all-extras \
    --no-header --no-annotate "$@" pyproject.toml -o "$pins"
{
    echo "# The versions that this is built and tested with. \`make setup\` installs exactly these, \`make lock\` writes them."
    # As one version suits all, it needs no condition.
    sed 's/ ;.*//' "$pins"
} >constraints.txt
