#!/bin/sh
# Makes the small runs, executes the notebooks in a fresh virtual environment,
# and keeps what they show. Usage: execute.sh [NOTEBOOK...]
#
# RUNS names a folder with runs made before; BIN the programs (see make_runs.sh).
# No browser is needed.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
if [ -z "${RUNS:-}" ]; then
    RUNS="$scratch/runs"
    "$here/make_runs.sh" "$RUNS"
fi
export RUNS
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --requirement requirements.txt
[ $# -gt 0 ] || set -- switchover.ipynb repeats.ipynb overhead.ipynb clock.ipynb
for notebook in "$@"; do
    echo "executing $notebook" >&2
    "$scratch/venv/bin/python" execute.py "$notebook"
done
