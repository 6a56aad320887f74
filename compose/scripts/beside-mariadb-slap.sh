#!/usr/bin/env bash
# gapscope's closed loop beside mariadb-slap: the same statement, as often, by as
# many clients, at the same MariaDB server, in turn. Starts a server of its own on
# loopback and removes it again.
#
#   compose/scripts/beside-mariadb-slap.sh [GAPSCOPE-LAB] [ROUNDS]
#
# Printed: medians over rounds of the total and of the clients' processor time a
# statement; the ratio of totals with its 95 % interval (t of the rounds' log ratios:
# both ran right after each other). mariadb-slap's total holds its connects (gapscope's does not), its
# processor time the start of its program.
set -euo pipefail

lab=${1:-target/release/gapscope-lab}
rounds=${2:-9}
statements=10000
for program in mariadbd mariadb-install-db mariadb mariadb-slap "$lab"; do
    command -v "$program" > /dev/null || PATH=$PATH:/usr/sbin command -v "$program" > /dev/null || {
        echo "error: $program is not there" >&2
        echo "hint: apt install mariadb-server mariadb-client; cargo build --release" >&2
        exit 1
    }
done
PATH=$PATH:/usr/sbin

place=$(mktemp -d "${TMPDIR:-/tmp}/gapscope-slap-XXXXXX")
server=
end() {
    if [ -n "$server" ]; then
        kill "$server" 2> /dev/null || true
        wait "$server" 2> /dev/null || true
    fi
    rm -rf "$place"
}
trap end EXIT
trap 'exit 130' INT TERM

as=()
if [ "$(id -u)" = 0 ]; then
    chown mysql "$place"
    as=(--user=mysql)
fi
mariadb-install-db --no-defaults "${as[@]}" --datadir="$place/data" --skip-test-db \
    > "$place/install.log" 2>&1 || { cat "$place/install.log" >&2; exit 1; }
password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
cat > "$place/init.sql" <<SQL
CREATE DATABASE bench;
CREATE TABLE bench.items (id INT NOT NULL PRIMARY KEY,
    category ENUM('books', 'music', 'games') NOT NULL) ENGINE=MEMORY;
INSERT INTO bench.items VALUES (1, 'books'), (2, 'music'), (3, 'games');
CREATE USER 'bench'@'127.0.0.1' IDENTIFIED BY '$password';
GRANT SELECT ON bench.* TO 'bench'@'127.0.0.1';
SQL
chmod 644 "$place/init.sql"
# A port that is free now; somebody else may be quicker, then it is tried again.
for _ in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 20000))
    mariadbd --no-defaults "${as[@]}" --datadir="$place/data" --port="$port" \
        --bind-address=127.0.0.1 --socket="$place/s" --pid-file="$place/data/pid" \
        --skip-name-resolve --performance-schema=OFF --skip-log-bin \
        --init-file="$place/init.sql" > "$place/server.log" 2>&1 &
    server=$!
    export MYSQL_PWD=$password
    for _ in $(seq 300); do
        kill -0 "$server" 2> /dev/null || break
        mariadb --no-defaults -h 127.0.0.1 -P "$port" -u bench -e 'SELECT 1' bench \
            > /dev/null 2>&1 && break 2
        sleep 0.1
    done
    kill "$server" 2> /dev/null || true
    wait "$server" 2> /dev/null || true
    server=
done
[ -n "$server" ] || { cat "$place/server.log" >&2; exit 1; }

statement="SELECT id, category /* one */ /* two (2) */ /* three, with words to skip */ FROM items WHERE category = 'music'"
echo "$statement" > "$place/statement.sql"
export GAPSCOPE_PASSWORD=$password

slap() { # clients; appends "total_ms cpu_us"
    local out
    TIMEFORMAT='cpu %U %S'
    out=$({ time mariadb-slap --no-defaults --protocol=tcp -h 127.0.0.1 -P "$port" -u bench \
        --create-schema=bench --no-drop --query="$statement" --concurrency="$1" \
        --number-of-queries="$statements" --iterations=1; } 2>&1)
    echo "$out" | awk -v n="$statements" '/Average number of seconds/ { total = $(NF - 1) * 1000 }
        $1 == "cpu" { cpu = ($2 + $3) * 1e6 / n } END { print total, cpu }' >> "$place/slap.$1"
}

gapscope() { # clients; appends "total_ms cpu_us"
    "$lab" overhead --target direct=bench@127.0.0.1:"$port"/bench \
        --target again=bench@127.0.0.1:"$port"/bench --statement "$place/statement.sql" \
        --statements "$statements" --clients "$1" --rounds 1 --no-claims --format json \
        --data "$place/runs" 2> "$place/lab.log" > "$place/summary.json" \
        || { cat "$place/lab.log" >&2; exit 1; }
    # Pretty-printed, keys in order: a cell's processor time comes before its
    # target, its total after.
    awk '/"cells"/ { inside = 1 } !inside { next }
        /"client_cpu_ns"/ { gsub(/[^0-9.]/, "", $2); cpu = $2 / 1000 }
        /"target":/ { is_direct = /"direct"/ }
        /"median":/ && is_direct { gsub(/[^0-9.]/, "", $2); print $2 / 1e6, cpu; exit }' \
        "$place/summary.json" >> "$place/gapscope.$1"
}

median() { # file, column
    cut -d' ' -f"$2" "$1" | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

for round in $(seq "$rounds"); do
    for clients in 1 40; do
        if [ $((round % 2)) = 0 ]; then
            slap "$clients"; gapscope "$clients"
        else
            gapscope "$clients"; slap "$clients"
        fi
    done
done

echo "$statements statements, median of $rounds rounds"
printf '%-8s  %-12s  %10s  %14s\n' clients program 'total ms' 'client CPU us'
for clients in 1 40; do
    for program in mariadb-slap gapscope; do
        file=$place/${program#mariadb-}.$clients
        printf '%-8s  %-12s  %10.1f  %14.2f\n' "$clients" "$program" \
            "$(median "$file" 1)" "$(median "$file" 2)"
    done
    awk -v a="$(median "$place/slap.$clients" 1)" -v b="$(median "$place/gapscope.$clients" 1)" \
        -v c="$(median "$place/slap.$clients" 2)" -v d="$(median "$place/gapscope.$clients" 2)" \
        -v n="$clients" 'BEGIN { printf "at %d: total %.3f times, throughput %.3f times, CPU %.2f times mariadb-slap'"'"'s\n",
            n, b / a, a / b, d / c }'
    paste -d' ' "$place/slap.$clients" "$place/gapscope.$clients" | awk -v n="$clients" '
        { r = log($3 / $1); s += r; q += r * r }
        END {
            if (NR < 2) exit
            m = s / NR; v = (q - NR * m * m) / (NR - 1); f = NR - 1; z = 1.959964
            # t by its expansion in 1/f (Abramowitz and Stegun 26.7.5).
            t = z + (z ^ 3 + z) / (4 * f) + (5 * z ^ 5 + 16 * z ^ 3 + 3 * z) / (96 * f * f)
            e = t * sqrt((v > 0 ? v : 0) / NR)
            printf "at %d: within rounds %.3f times, 95 %% interval %.3f to %.3f\n",
                n, exp(m), exp(m - e), exp(m + e)
        }'
done
