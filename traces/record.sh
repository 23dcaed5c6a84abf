#!/bin/sh
# Records the traces of this folder again. On a machine with nothing else to do:
#
#   sh traces/record.sh cpu
#   LLAMA='--size 380m' QWEN='--size 0.6b' sh traces/record.sh h100     (on a GPU, at real sizes)
#
# The first word begins the files' names; the rest goes to every molprof capture. The runs of a model are paired.
set -eu
name=${1:?"a word for the files' names, such as cpu"}
shift
here=$(cd "$(dirname "$0")" && pwd)
made=$(mktemp -d "$here/.record.XXXXXX")
trap 'rm -rf "$made"' EXIT
trap 'exit 130' INT TERM HUP
record() {
    model=$1
    case $model in llama) size=${LLAMA:-} ;; *) size=${QWEN:-} ;; esac
    shift
    # shellcheck disable=SC2086  # the size is two words
    molprof capture --model "$model" $size -n 8 --batch-size 4 --repeats 6 "$@"
}
record llama --processor none,generic,grammar --disagreement -o "$made" "$@"
record qwen --processor none,generic,grammar --disagreement -o "$made" "$@"
# Apart, since a placeholder is that of all processors of a capture.
record qwen --processor qwen --placeholder 0.000,0.000,0.000 --disagreement -o "$made/qwen-qwen.json.gz" "$@"
record llama --processor grammar --forced-runs -o "$made/llama-jump.json.gz" "$@"
record qwen --processor grammar --forced-runs -o "$made/qwen-jump.json.gz" "$@"
for file in "$made"/*.json.gz; do
    mv -f "$file" "$here/$name-${file##*/}"
done
