#!/usr/bin/env bash
# Start, baseline, switchover, cleanup: the study in one command.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
trap '"$scripts/stepN-cleanup.sh"' EXIT
"$scripts/step0-start.sh"
"$scripts/step1-baseline.sh"
"$scripts/step2-switchover.sh"
