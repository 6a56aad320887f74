#!/bin/sh
# Makes the small runs that the notebooks read: usage: make_runs.sh FOLDER
#
# A switchover by the lab's own backends and proxies; the same fault again and
# again; a benchmark; and 40 s of two agents against one aggregator for their
# clocks: one as it is, one (as root, where time namespaces can be made) whose clock
# is 5,000 s ahead. These agents probe a port on which nobody listens: only their
# clocks are of interest.
#
# The programs are taken from BIN, by default built first. SHORT=1 makes smaller
# runs, all at once: enough to see that the notebooks work, no numbers to keep.
set -eu
runs="${1:?usage: make_runs.sh FOLDER}"
here="$(cd "$(dirname "$0")" && pwd)"
if [ -z "${BIN:-}" ]; then
    (cd "$here/.." && cargo build --release --workspace --bins --locked)
    BIN="${CARGO_TARGET_DIR:-$here/../target}/release"
fi
mkdir -p "$runs"
work="$(mktemp -d)"
pids=""
cleanup() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# clock DURATION
clock() {
    "$BIN/gapscope-aggregator" serve --listen 127.0.0.1:0 --data "$runs/clock" \
        --address-file "$work/address" 2>"$work/aggregator.log" &
    pids="$pids $!"
    tries=0
    until [ -s "$work/address" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { echo "error: the aggregator does not come up" >&2; cat "$work/aggregator.log" >&2; exit 1; }
        sleep 0.1
    done
    aggregator="http://$(cat "$work/address")"
    cat >"$work/agent.toml" <<TOML
aggregator = "$aggregator"

[[target]]
name = "nobody"
address = "127.0.0.1:1"
user = "gapscope"
TOML
    agents=1
    "$BIN/gapscope-agent" run --config "$work/agent.toml" --agent-id here --data "$work/here" 2>"$work/here.log" &
    pids="$pids $!"
    if unshare -T --monotonic 1 --boottime 1 true 2>/dev/null; then
        agents=2
        unshare -T --monotonic 5000 --boottime 5000 -- \
            "$BIN/gapscope-agent" run --config "$work/agent.toml" --agent-id ahead --data "$work/ahead" 2>"$work/ahead.log" &
        pids="$pids $!"
    else
        echo "note: no time namespaces here (root is needed): both clocks are one" >&2
    fi
    tries=0
    until [ "$("$BIN/gapscope-aggregator" agents --aggregator "$aggregator" | grep -cE '(here|ahead)')" -ge "$agents" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { echo "error: the agents do not come" >&2; cat "$work"/*.log >&2; exit 1; }
        sleep 0.1
    done
    run="$("$BIN/gapscope-aggregator" start --aggregator "$aggregator" --target nobody --duration "$1" \
        --scenario clocks --reused 1 --interval 1s --patient 0 --new 0)"
    tries=0
    until "$BIN/gapscope-aggregator" runs --aggregator "$aggregator" | grep "$run" | grep -q closed; do
        tries=$((tries + 1))
        [ "$tries" -lt 1200 ] || { echo "error: the run does not end" >&2; exit 1; }
        sleep 0.2
    done
    # Nothing answers there, so the report may end with 4; its files are what is wanted.
    "$BIN/gapscope-aggregator" report "$run" --data "$runs/clock" || [ $? -eq 4 ]
}

if [ -z "${SHORT:-}" ]; then
    "$BIN/gapscope-lab" run switchover --seed 7 --data "$runs/switchover"
    "$BIN/gapscope-lab" run "$here/repeats.toml" --repeat 20 --seed 7 --data "$runs/repeats"
    "$BIN/gapscope-lab" overhead --statements 2000 --clients 1,4,16 --rounds 12 \
        --seed 7 --data "$runs/overhead"
    clock 40s
    exit
fi

# background NAME COMMAND...
started=""
background() {
    name="$1"
    shift
    "$@" >"$work/$name.out" 2>&1 &
    pids="$pids $!"
    started="$started $name=$!"
}
background switchover "$BIN/gapscope-lab" run switchover --faster 2 --seed 7 --data "$runs/switchover"
background repeats "$BIN/gapscope-lab" run "$here/repeats.toml" --repeat 7 --seed 7 --data "$runs/repeats"
background overhead "$BIN/gapscope-lab" overhead --statements 100 --clients 1,4 --rounds 12 \
    --seed 7 --data "$runs/overhead"
clock 12s
for one in $started; do
    name="${one%%=*}"
    wait "${one#*=}" || { echo "error: the run \`$name\` failed" >&2; cat "$work/$name.out" >&2; exit 1; }
done
