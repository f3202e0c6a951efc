#!/usr/bin/env bash
# On a machine with a GPU that has torch, transformers and safetensors and no network; meant for less than 8 minutes, not yet timed on one.
#   python benchmarks/pieces.py split PIECES        first, where the embedded target is: files of less than 60 MB
#   bash benchmarks/gpu.sh PIECES [DEVICE] [--tiny] there; its output belongs into benchmarks/results/
set -euo pipefail
pieces=$(realpath "$1") device=${2:-cuda}
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD" EAGLE2_CACHE=$(mktemp -d) HF_HUB_OFFLINE=1
trap 'rm -rf "$EAGLE2_CACHE"' EXIT
python benchmarks/pieces.py join "$pieces" "$EAGLE2_CACHE/smollm2-135m-instruct"
for dtype in float32 bfloat16; do
    echo; echo "## Exactness, $dtype"; echo
    python scripts/exactness.py --device "$device" --dtype "$dtype" --limit 8 --max-new-tokens 64 || echo "some ids differ in $dtype"
done
echo; echo "## Speed"; echo
python benchmarks/gpu.py --device "$device" "${@:3}"
