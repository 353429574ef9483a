# Starts and stops a server that keeps everything in memory: what s3.sh and gcs.sh share. They set
#
#   python         the Python that has the server
#   modules        the modules that it needs, and hint, what to say where it has not got them
#   port           where it listens unless a port is given
#   bucket, body   the path that makes the bucket "runs", and the body of that request
#   method         of that request
#
# and define serve, which becomes the server at a port.

usage() {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

make_bucket() {
    "$python" - "$1$bucket" "$method" "$body" << 'END'
import sys, time, urllib.request

address, method, body = sys.argv[1:]
request = urllib.request.Request(address, body.encode() or None, {"Content-Type": "application/json"}, method=method)
for _ in range(600):
    try:
        urllib.request.urlopen(request, timeout=5)
        sys.exit(0)
    except OSError:
        time.sleep(0.1)
sys.exit("the server does not answer")
END
}

[ $# -ge 2 ] || usage
case $1 in
start)
    "$python" -c "import $modules" 2> /dev/null || {
        echo "${0##*/}: $hint" >&2
        exit 3
    }
    mkdir -p "$2"
    serve "${3:-$port}" > "$2/log.txt" 2>&1 < /dev/null &
    echo $! > "$2/pid"
    make_bucket "http://127.0.0.1:${3:-$port}"
    echo "http://127.0.0.1:${3:-$port}"
    ;;
stop)
    kill "$(cat "$2/pid")"
    ;;
*) usage ;;
esac
