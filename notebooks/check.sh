#!/bin/sh
# Whether every notebook runs: a fresh virtual environment from the pinned
# requirements, small runs made by the programs in BIN (see make_runs.sh), and each
# notebook executed on them. Copies are executed: the kept outputs stay as they are.
# No browser is needed. Meant for .ci/run.
#
# Where no package index can be reached that is an error, except on a machine that
# has none: pip is told to use none, or it was given none and the name of its default
# is not known here.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
scratch="$(mktemp -d)"
making=""
cleanup() {
    [ -z "$making" ] || kill "$making" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    if command -v apt-get >/dev/null 2>&1; then
        sudo=""
        [ "$(id -u)" = 0 ] || sudo="sudo"
        $sudo apt-get update -qq
        DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends python3-venv
    else
        echo "error: the notebooks need python3 with its venv module" >&2
        exit 1
    fi
fi

RUNS="$scratch/runs"
export RUNS
SHORT=1 "$here/make_runs.sh" "$RUNS" >"$scratch/runs.log" 2>&1 &
making=$!

python3 -m venv "$scratch/venv"
python="$scratch/venv/bin/python"
if ! "$python" -m pip install --quiet --disable-pip-version-check --retries 2 \
    --requirement "$here/requirements.txt" >"$scratch/pip.log" 2>&1; then
    has_none() {
        [ "${PIP_NO_INDEX:-}" = 1 ] && return 0
        [ -z "${PIP_INDEX_URL:-}" ] || return 1
        ! "$python" -m pip config list | grep -qE '(^|\.)index-url=' || return 1
        ! "$python" -c '
import socket
from pip._internal.models.index import PyPI
socket.getaddrinfo(PyPI.netloc, 443)' 2>/dev/null
    }
    if has_none; then
        echo "skipped: the notebooks were not run, since this machine has no Python package index"
        exit 0
    fi
    cat "$scratch/pip.log" >&2
    echo "error: what the notebooks need could not be installed (notebooks/requirements.txt)" >&2
    exit 1
fi

wait "$making" || {
    making=""
    cat "$scratch/runs.log" >&2
    echo "error: the notebooks' runs could not be made" >&2
    exit 1
}
making=""
count=0
for notebook in "$here"/*.ipynb; do
    name="$(basename "$notebook")"
    cp "$notebook" "$scratch/$name"
    "$python" "$here/execute.py" "$scratch/$name"
    echo "$name: runs"
    count=$((count + 1))
done
[ "$count" -ge 4 ] || { echo "error: $count notebooks, where four are expected" >&2; exit 1; }
