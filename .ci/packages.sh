#!/usr/bin/env bash
# Installs the project and the pinned packages into the virtual environment $1: all of them, or those of the
# dependency group $2, `robot` or `deploy` (docs/install.md), or with `cluster` what a node of a cluster needs.
#
# By uv, since robosuite 1.5.2 asks for a mink that asks for an old numpy, which pip cannot be told to overlook
# (see `tool.uv` in pyproject.toml).
set -euo pipefail

python=$1/bin/python
part=${2:-}
"$python" -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
install=("$1/bin/uv" pip install --quiet --python "$python" -c constraints.txt)

# uv does not read pip's configuration; where this machine gets its packages from holds for uv too.
take_over() {
    local value
    [ -z "${!1:-}" ] || return 0
    value=$("$python" -m pip config get ":env:.$2" 2>/dev/null || "$python" -m pip config get "global.$2" 2>/dev/null) ||
        return 0
    export "$1=$value"
}
take_over UV_DEFAULT_INDEX index-url
take_over SSL_CERT_FILE cert
take_over UV_FIND_LINKS find-links
if [ -n "${UV_FIND_LINKS:-}" ]; then
    # pip separates them by white space, uv by commas.
    read -ra links <<<"${UV_FIND_LINKS//$'\n'/ }"
    UV_FIND_LINKS=$(IFS=, && echo "${links[*]}")
fi

install_torch() {
    # The build of torch from the package index needs 4 GB of CUDA's libraries, which only an NVIDIA card can use.
    torch=$(grep '^torch==' constraints.txt)
    if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; then
        echo "torch: the CUDA build, for the NVIDIA driver of this machine"
    elif "${install[@]}" "$torch+cpu" 2>/dev/null || "${install[@]}" --torch-backend=cpu "$torch" 2>/dev/null; then
        echo "torch: the CPU build, since there is no NVIDIA driver"
    else
        echo "torch: the CUDA build (4 GB more): there is no NVIDIA driver, but the index of CPU builds cannot be reached"
    fi
}

[ "$part" = robot ] || install_torch
if [ "$part" = cluster ]; then
    "${install[@]}" '.[accelerate,ray]'
elif [ -n "$part" ]; then
    "${install[@]}" --group "$part"
    "${install[@]}" --no-deps .
else
    "${install[@]}" -e '.[dev]'
fi
