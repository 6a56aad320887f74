#!/usr/bin/env bash
# S0: nothing is done. Needs step 0.
source "$(dirname "$0")/docker-common.sh"

aggregator_id=$(container aggregator)
run=$(start_run baseline)
echo "run $run, $duration s"
sleep "$((duration + 1))"
aggregator stop "$run" > /dev/null
aggregator report "$run"
