#!/bin/sh
# A PostgreSQL server of your own for tests or a first try, without a password, on this machine alone.
#
#   tests/services/postgres.sh start DIR [PORT]   makes the database where there is none, and prints its address
#   tests/services/postgres.sh restart DIR        stops it hard, as a crash does, and starts it again on the same port
#   tests/services/postgres.sh stop DIR
#
# DIR is a folder that other users may enter, such as /tmp/ledger; started by root, the server runs as user postgres.
# Debian and Ubuntu: apt-get install postgresql. Exit status 3: PostgreSQL is not installed.
set -eu

usage() {
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

[ $# -ge 2 ] || usage
command=$1 dir=$2

found=$(command -v initdb || ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -n 1)
bin=$(dirname "$(readlink -f "${found:-/nowhere/initdb}")")
[ -x "$bin/initdb" ] || { echo "postgres.sh: no initdb is to be found; apt-get install postgresql" >&2; exit 3; }

as_server() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid postgres --regid postgres --clear-groups env LC_ALL=C HOME="$dir" "$@"
    else
        env LC_ALL=C "$@"
    fi
}

control() {
    (cd "$dir" && as_server "$bin/pg_ctl" -D "$dir/data" -l "$dir/log.txt" -w -t 60 -s "$@")
}

make() {
    mkdir -p "$dir"
    if [ "$(id -u)" = 0 ]; then chown postgres: "$dir"; fi
    as_server test -w "$dir" || { echo "postgres.sh: user postgres may not write to $dir; take one in /tmp" >&2; exit 2; }
    (cd "$dir" && as_server "$bin/initdb" -D "$dir/data" -U lit -A trust -E UTF8 --no-sync >/dev/null)
    printf "listen_addresses = '127.0.0.1'\nport = %s\nunix_socket_directories = '%s'\n" "$1" "$dir" |
        as_server tee -a "$dir/data/postgresql.conf" >/dev/null
}

port() {
    sed -n 's/^port = //p' "$dir/data/postgresql.conf" | tail -n 1
}

case $command in
start)
    fresh=
    [ -f "$dir/data/PG_VERSION" ] || { make "${3:-54329}"; fresh=1; }
    control start || { tail -n 5 "$dir/log.txt" >&2; exit 1; }
    [ -z "$fresh" ] || (cd "$dir" && as_server "$bin/createdb" -h 127.0.0.1 -p "$(port)" -U lit lit)
    echo "postgresql+psycopg://lit@127.0.0.1:$(port)/lit"
    ;;
restart)
    control stop -m immediate
    control start
    ;;
stop)
    control stop -m fast
    ;;
*) usage ;;
esac
