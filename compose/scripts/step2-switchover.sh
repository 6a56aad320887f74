#!/usr/bin/env bash
# S1 as in the study: the first server is stopped (SIGTERM, and SIGKILL after 2 s) a
# third into the measurement, at a random phase of up to 2 s. Needs step 0; starts the
# server again afterwards.
source "$(dirname "$0")/docker-common.sh"

victim=$(container "$first")
aggregator_id=$(container aggregator)
run=$(start_run switchover)
echo "run $run, $duration s"
since=$(date +%s)
phase=$((RANDOM % 2000))
sleep "$((duration / 3)).$(printf '%03d' $((phase % 1000)))"
sleep "$((phase / 1000))"
# The mark is stamped where it arrives, just before the command.
aggregator mark "$run" "docker stop --time 2 $first" --step stop --subject "$first" \
    --identity "$first:4000" > /dev/null
docker stop --time 2 "$victim" > /dev/null
docker events --since "$since" --until "$(($(date +%s) + 1))" --filter "container=$victim" \
    --filter event=kill --filter event=die \
    --format '  {{.TimeNano}} {{.Action}} {{with .Actor.Attributes.signal}}signal {{.}}{{end}}{{with .Actor.Attributes.exitCode}}exit code {{.}}{{end}}' \
    | sed "s/^/$first/"
sleep "$((duration - duration / 3 + 1))"
aggregator stop "$run" > /dev/null
aggregator report "$run"
docker start "$victim" > /dev/null
