#!/usr/bin/env bash
# What pip cannot bring: Python itself, OpenGL for offscreen rendering, GLib for OpenCV, libusb for RealSense
# cameras, a compiler with headers for evdev, and a browser for the tests of the page. Installs what is missing
# where it may, otherwise says exactly what to run. $1 is the Python to be used, if there is one already.
set -euo pipefail

python=${1:-python3}
missing=()

# Libraries by their file, since some releases name their package otherwise.
need_library() { [[ $libraries == *"$1"* ]] || missing+=("$2"); }

PATH=$PATH:/usr/sbin:/sbin
if ! command -v ldconfig >/dev/null; then
    exit 0 # not a Linux with glibc; nothing to install from Debian's archive
fi
libraries=$(ldconfig -p)
need_library libEGL.so.1 libegl1
need_library libGL.so.1 libgl1
need_library libOSMesa.so libosmesa6
need_library libusb-1.0.so.0 libusb-1.0-0
need_library libglib-2.0.so.0 libglib2.0-0

command -v gcc >/dev/null || missing+=(gcc libc6-dev)
[ -e /usr/include/linux/input.h ] || missing+=(linux-libc-dev)
if command -v "$python" >/dev/null; then
    name=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$headers/Python.h" ] || missing+=("$name-dev")
    # A virtual environment needs none to make another.
    "$python" -c 'import sys; sys.prefix != sys.base_prefix or __import__("ensurepip")' 2>/dev/null ||
        missing+=("$name-venv")
else
    missing+=(python3 python3-dev python3-venv)
fi

# Ubuntu has Chromium only as a snap; there the tests take what `playwright install chromium` brings.
command -v chromium >/dev/null || command -v google-chrome >/dev/null ||
    grep -qs '^ID=ubuntu' /etc/os-release || missing+=(chromium)

[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing system libraries: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
    echo "System libraries are missing. Run this, then the same command again:" >&2
    echo "    sudo apt-get install -y ${missing[*]}" >&2
    exit 1
fi
