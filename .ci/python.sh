#!/usr/bin/env bash
# Prints the path of the newest supported Python on the PATH, that of version $1 left out. Fails where there is none.
set -euo pipefail

leave_out=${1:-}
for version in 3.14 3.13 3.12 3.11; do
    [ "$version" != "$leave_out" ] || continue
    for name in "python$version" python3; do
        # A version manager puts names on the PATH behind which there may be nothing: what counts is what runs.
        path=$("$name" -c 'import sys; print("%d.%d %s" % (*sys.version_info[:2], sys.executable))' 2>/dev/null) || continue
        [ "${path%% *}" = "$version" ] || continue
        echo "${path#* }"
        exit 0
    done
done
exit 1
