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

python=${TESTBENCH:-python3} port=54340
modules='gunicorn, testbench'
hint='pip install "git+https://github.com/googleapis/storage-testbench", and TESTBENCH=its python'
bucket='/storage/v1/b?project=test' method=POST body='{"name": "runs"}'
here=$(dirname "$0")

serve() {
    exec "$python" -m gunicorn --chdir "$here" --bind "127.0.0.1:$1" --threads 8 "gcs_server:run()"
}

. "$here/memory_server.sh"
