#!/usr/bin/env bash
# The gates of samples/ci/Makefile without make: job.sh MODEL K [GATE...], where gates are options of
# dnnp-check, such as --max-gap 0.05 --max-memory 0.9 --max-latency 50ms. Status 8: one does not hold.
set -euo pipefail
model=$1 k=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
dnnp-import -q "$model" | dnnp-coarsen -q | dnnp-partition -q -k "$k" | dnnp-bound -q -o "$folder/plan"
dnnp-check -q "$@" "$folder/plan"
dnnp-run -q --verify "$folder/plan" > "$folder/run"
dnnp-check -q "$folder/run"
