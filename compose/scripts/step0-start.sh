#!/usr/bin/env bash
# Builds our images, starts two servers, the proxies, the agent and the aggregator,
# and waits until every proxy routes. See docker-common.sh for what can be chosen.
source "$(dirname "$0")/docker-common.sh"

mkdir -p "$state/config"
password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
for file in "$docker_folder"/config/*; do
    target=$state/config/$(basename "$file")
    sed -e "s/@PASSWORD@/$password/g" -e "s/10\.198\.33\./$GAPSCOPE_NET./g" "$file" > "$target"
    if [[ $backend == mariadb ]]; then
        sed -i -e "s/$GAPSCOPE_NET\.11\b/$GAPSCOPE_NET.13/g" -e "s/$GAPSCOPE_NET\.12\b/$GAPSCOPE_NET.14/g" \
            -e 's/tidb-\([12]\) /mariadb-\1 /' "$target"
    fi
done
printf '%s' "$password" > "$state/config/probe.password"
# The agent is told of the proxies that were chosen, and no others.
awk -v RS= -v ORS='\n\n' -v chosen=" $proxies " '
    { name = $0; sub(/.*name = "/, "", name); sub(/".*/, "", name) }
    !/^\[\[target\]\]/ || index(chosen, " " name " ")
' "$state/config/agent.toml" > "$state/config/agent.chosen"
mv "$state/config/agent.chosen" "$state/config/agent.toml"
# Containers read them as users with other numbers.
chmod 644 "$state"/config/*
chmod 711 "$state"

for image in "${GAPSCOPE_IMAGE_AGENT:-gapscope-agent:local}" "${GAPSCOPE_IMAGE_AGGREGATOR:-gapscope-aggregator:local}"; do
    if ! docker image inspect "$image" > /dev/null 2>&1; then
        echo "building $image (minutes, the first time)"
        compose build aggregator agent
        break
    fi
done

compose up --detach --no-build
if [[ " $proxies " == *" tiproxy "* ]]; then
    # Without PD its backends are put, and only the commit makes it use them.
    api=http://127.0.0.1:3080/api/admin/namespace
    [[ $backend == tidb ]] && hosts=(11 12) || hosts=(13 14)
    body="{\"namespace\":\"default\",\"backend\":{\"instances\":[\"$GAPSCOPE_NET.${hosts[0]}:4000\",\"$GAPSCOPE_NET.${hosts[1]}:4000\"]}}"
    for _ in $(seq 100); do
        curl -fsS -X PUT -d "$body" "$api/default" > /dev/null 2>&1 \
            && curl -fsS -X POST "$api/commit" > /dev/null 2>&1 && break
        sleep 0.3
    done
fi

echo "waiting until the agent reaches every proxy"
for _ in $(seq 60); do
    if said=$(compose exec -T agent /usr/local/bin/gapscope-agent check --config /gapscope/agent.toml 2>&1); then
        echo "$said"
        exit 0
    fi
    sleep 1
done
echo "$said" >&2
fail "not every proxy routes" "docker logs says more; stepN-cleanup.sh takes all down"
