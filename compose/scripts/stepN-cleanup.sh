#!/usr/bin/env bash
# Takes all down that step 0 started. The runs stay, as gapscope-runs.tar, unless
# GAPSCOPE_KEEP=no.
source "$(dirname "$0")/docker-common.sh"

if [[ ${GAPSCOPE_KEEP:-yes} != no ]] && id=$(container aggregator) && [[ -n $id ]]; then
    docker cp "$id:/runs" - > gapscope-runs.tar && echo "the runs are in gapscope-runs.tar"
fi
compose down --volumes --remove-orphans --timeout 5
rm -rf "$state"
