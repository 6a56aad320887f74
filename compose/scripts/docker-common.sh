# What the steps share; read by them, not run.
#
#   GAPSCOPE_BACKEND   tidb (default) or mariadb
#   GAPSCOPE_PROXIES   "tiproxy haproxy proxysql" (default), or some of them
#   GAPSCOPE_DURATION  seconds of a measurement (default 30)
#   GAPSCOPE_NET       the network's first three parts (default 10.198.33)
#   GAPSCOPE_IMAGE_*   other images, see compose/docker/compose.yaml
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
docker_folder=$scripts/../docker
state=${GAPSCOPE_STATE:-$docker_folder/state}
backend=${GAPSCOPE_BACKEND:-tidb}
proxies=${GAPSCOPE_PROXIES:-tiproxy haproxy proxysql}
duration=${GAPSCOPE_DURATION:-30}
export GAPSCOPE_NET=${GAPSCOPE_NET:-10.198.33}
export GAPSCOPE_CONFIG=$state/config
export GAPSCOPE_OWNER=${GAPSCOPE_OWNER:-by hand}

fail() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

command -v docker > /dev/null || fail "there is no program \`docker\`" \
    "apt install docker.io docker-compose; gapscope-lab run --runtime embedded needs nothing"
docker version > /dev/null 2>&1 || fail "no container engine answers" \
    "start it (systemctl start docker), or let this user reach it"
if docker compose version > /dev/null 2>&1; then
    composer=(docker compose)
elif command -v docker-compose > /dev/null; then
    composer=(docker-compose)
else
    fail "neither \`docker compose\` nor \`docker-compose\` is there" "apt install docker-compose"
fi

case $backend in
    tidb) first=tidb-1 second=tidb-2 ;;
    mariadb) first=mariadb-1 second=mariadb-2 ;;
    *) fail "GAPSCOPE_BACKEND=$backend is not known" "tidb or mariadb" ;;
esac

compose() {
    local profiles=(--profile gapscope --profile "$backend") proxy
    for proxy in $proxies; do profiles+=(--profile "$proxy"); done
    "${composer[@]}" --project-name gapscope-study \
        --file "$docker_folder/compose.yaml" --file "$docker_folder/compose.ports.yaml" \
        "${profiles[@]}" "$@"
}

# Not through the compose tool, which takes its time: runs are short.
aggregator() {
    [[ -n ${aggregator_id:-} ]] || aggregator_id=$(container aggregator)
    docker exec -i "$aggregator_id" /usr/local/bin/gapscope-aggregator "$@"
}

container() {
    compose ps --quiet "$1"
}

# Starts a measurement of all proxies; prints its id.
start_run() {
    local targets=() proxy
    for proxy in $proxies; do targets+=(--target "$proxy"); done
    aggregator start "${targets[@]}" --duration "${duration}s" --canary user_variable --scenario "$1"
}
