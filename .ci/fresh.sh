#!/usr/bin/env bash
# `make doctor`, `make demo` and `make test` of the committed state on fresh Debian releases: clean roots that hold git,
# make and CA certificates besides the base system. Needs root and debootstrap. $FRESH_RELEASES and $FRESH_TARGETS say
# what is tried. The roots lie in $FRESH_ROOTS; one where something failed stays there to be looked at.
set -euo pipefail
cd "$(dirname "$0")/.."

roots=${FRESH_ROOTS:-/var/tmp/robot-rl-fresh}
read -ra releases <<<"${FRESH_RELEASES:-bookworm trixie}"
read -ra targets <<<"${FRESH_TARGETS:-doctor demo test}"

# In a mount namespace of its own, so that nothing stays mounted when it ends, however it ends.
apart() { unshare --mount --propagation private "$@"; }

run_in() {
    local root=$1 path variables
    for path in /proc /sys /dev /dev/pts /dev/shm; do mount --bind "$path" "$root$path"; done
    # This machine's ways to packages: pip's files, certificates, folders of wheels, variables.
    for path in /etc/resolv.conf /etc/hosts /etc/pip.conf \
        $(python3 -m pip config list | grep -oE "/[^' ,]+" | sort -u); do
        if [ -d "$path" ]; then
            mkdir -p "$root$path"
        elif [ -e "$path" ]; then
            mkdir -p "$(dirname "$root$path")" && touch "$root$path"
        else
            continue
        fi
        mount --bind -o ro "$path" "$root$path"
    done
    mapfile -t variables < <(env | grep -E '^(PIP|UV)_|_proxy=|_PROXY=|^SSL_CERT')
    exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${variables[@]}" \
        make -C /root/robot-rl "${targets[@]}"
}

if [ "${1:-}" = --in ]; then
    run_in "$2"
fi

[ "$(id -u)" -eq 0 ] || { echo "make test-fresh needs root, for debootstrap and chroot" >&2 && exit 2; }
command -v debootstrap >/dev/null || { echo "debootstrap is missing: apt-get install -y debootstrap" >&2 && exit 2; }

mkdir -p "$roots"
for release in "${releases[@]}"; do
    echo "== $release: make ${targets[*]}"
    root=$roots/$release
    rm -rf "$root"
    apart debootstrap --variant=minbase --include=git,make,ca-certificates "$release" "$root" >"$roots/$release.log" 2>&1 ||
        { tail -n 20 "$roots/$release.log" >&2 && exit 1; }
    git clone --quiet . "$root/root/robot-rl"
    apart .ci/fresh.sh --in "$root"
    echo "== $release: passed"
    rm -rf "$root"
done
