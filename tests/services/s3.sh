#!/bin/sh
# An S3 server of your own for tests or a first try, on this machine alone; it keeps everything in memory.
#
#   tests/services/s3.sh start DIR [PORT]   starts it, makes the bucket "runs", and prints its address
#   tests/services/s3.sh stop DIR           ends it; what it held is gone
#
# Afterwards: export AWS_ENDPOINT_URL=ADDRESS AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test, and --runs s3://runs/first
# pip install "moto[server,s3]" s3fs. PYTHON names the Python that has them. Exit status 3: they are not installed.
set -eu

python=${PYTHON:-python3} port=54330
modules='moto.server, s3fs' hint='pip install "moto[server,s3]" s3fs'
bucket=/runs method=PUT body=

serve() {
    exec "$python" -c 'import sys; from moto.server import main; sys.exit(main(sys.argv[1:]))' -H 127.0.0.1 -p "$1"
}

. "$(dirname "$0")/memory_server.sh"
