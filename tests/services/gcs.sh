#!/bin/sh
# A server of Google Cloud Storage of your own for tests or a first try, on this machine alone: Google's storage-testbench,
# which keeps everything in memory.
#
#   tests/services/gcs.sh start DIR [PORT]   starts it, makes the bucket "runs", and prints its address
#   tests/services/gcs.sh stop DIR           ends it; what it held is gone
#
# Afterwards: export STORAGE_EMULATOR_HOST=ADDRESS GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false, and --runs gs://runs/first
# In an environment of its own: pip install "git+https://github.com/googleapis/storage-testbench". TESTBENCH names its
# Python. Exit status 3: it is not installed.
set -eu

usage() {
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

[ $# -ge 2 ] || usage
command=$1 dir=$2 python=${TESTBENCH:-python3}

wait_for() {
    "$python" - "$1" << 'END'
import sys, time, urllib.request

request = urllib.request.Request(sys.argv[1] + "/storage/v1/b?project=test", b'{"name": "runs"}', method="POST")
request.add_header("Content-Type", "application/json")
for _ in range(600):
    try:
        urllib.request.urlopen(request, timeout=5)
        sys.exit(0)
    except OSError:
        time.sleep(0.1)
sys.exit("gcs.sh: the server does not answer")
END
}

case $command in
start)
    "$python" -c 'import gunicorn, testbench' 2>/dev/null || {
        echo 'gcs.sh: pip install "git+https://github.com/googleapis/storage-testbench", and TESTBENCH=its python' >&2
        exit 3
    }
    mkdir -p "$dir"
    port=${3:-54340}
    "$python" -m gunicorn --chdir "$(dirname "$0")" --bind "127.0.0.1:$port" --threads 8 "gcs_server:run()" \
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
