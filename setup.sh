#!/bin/sh
# Makes .venv: finds a Python 3.12, installs everything in requirements.lock (hashes checked) but libtpu, and foretell
# itself in place. With --tpu it adds libtpu.
set -eu
cd "$(dirname "$0")"

tried=""
works() { # a version manager's stand-in may exist and not run, so ask it
    tried="$tried $1"
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

find_python() {
    for candidate in "${FORETELL_PYTHON:-}" "${UV_PYTHON:-}" python3.12 python3 python; do
        [ -n "$candidate" ] && works "$candidate" && echo "$candidate" && return
    done
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12 \
        "$HOME"/.local/share/uv/python/cpython-3.12*/bin/python3.12 /opt/*/bin/python3.12 /usr/local/bin/python3.12; do
        [ -x "$candidate" ] && works "$candidate" && echo "$candidate" && return
    done
    # None here: let uv fetch one, where the network allows it.
    if command -v python3 >/dev/null && python3 -m venv .venv-uv >/dev/null 2>&1 &&
        .venv-uv/bin/python -m pip install -q uv >/dev/null 2>&1 &&
        .venv-uv/bin/uv python install -q 3.12 >/dev/null 2>&1; then
        candidate=$(.venv-uv/bin/uv python find 3.12)
        rm -rf .venv-uv
        works "$candidate" && echo "$candidate" && return
    fi
    rm -rf .venv-uv
    {
        echo "foretell needs Python 3.12 and none was found. Tried:$tried, and fetching one with uv."
        echo "Install Python 3.12 (with venv and pip), or name it: FORETELL_PYTHON=/path/to/python3.12 make setup"
    } >&2
    return 2
}

if ! { [ -x .venv/bin/python ] && works .venv/bin/python; }; then
    python=$(find_python)
    echo "Making .venv with $("$python" --version)" >&2
    rm -rf .venv
    "$python" -m venv .venv
fi

# The lock without one package, or with only one: its stanzas begin at the margin and go on indented.
only() { awk -v name="$1" '/^[a-zA-Z0-9]/ { keep = index($0, name "==") == 1 } keep' requirements.lock; }
without() { awk -v name="$1" '/^[a-zA-Z0-9]/ { keep = index($0, name "==") != 1 } keep' requirements.lock; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ ! -x .venv/bin/uv ]; then
    only uv >"$work/uv.txt"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$work/uv.txt"
fi
if [ "${1:-}" = --tpu ]; then only libtpu >"$work/lock.txt"; else without libtpu >"$work/lock.txt"; fi
export VIRTUAL_ENV="$PWD/.venv" UV_HTTP_TIMEOUT=300
echo "Installing the locked packages" >&2
# Bytecode is compiled now, as pip does, and not at each start where writing it later is switched off.
.venv/bin/uv pip install --quiet --compile-bytecode --require-hashes --no-deps -r "$work/lock.txt"
.venv/bin/uv pip install --quiet --no-deps --no-build-isolation --editable .
