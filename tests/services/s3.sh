#!/bin/sh
# An S3 server of your own for tests or a first try, on this machine alone; it keeps everything in memory.
#
#   tests/services/s3.sh start DIR [PORT]   starts it, makes the bucket "runs", and prints its address
#   tests/services/s3.sh stop DIR           ends it; what it held is gone
#
# Afterwards: export AWS_ENDPOINT_URL=ADDRESS AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test, and --runs s3://runs/first
# pip install "moto[server,s3]" s3fs. PYTHON names the Python that has them. Exit status 3: they are not installed.
set -eu

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

[ $# -ge 2 ] || usage
command=$1 dir=$2 python=${PYTHON:-python3}

wait_for() {
    "$python" - "$1" << 'END'
import sys, time, urllib.request

for _ in range(600):
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/runs", method="PUT"), timeout=5)
        sys.exit(0)
    except OSError:
        time.sleep(0.1)
sys.exit("s3.sh: the server does not answer")
END
}

case $command in
start)
    "$python" -c 'import moto.server, s3fs' 2>/dev/null || { echo 's3.sh: pip install "moto[server,s3]" s3fs' >&2; exit 3; }
    mkdir -p "$dir"
    port=${3:-54330}
    "$python" -c 'import sys; from moto.server import main; sys.exit(main(sys.argv[1:]))' -H 127.0.0.1 -p "$port" \
        > "$dir/log.txt" 2>&1 < /dev/null &
    echo $! > "$dir/pid"
    wait_for "http://127.0.0.1:$port"
    echo "http://127.0.0.1:$port"
    ;;
stop)
    kill "$(cat "$dir/pid")"
    ;;
*) usage ;;
esac
