#!/bin/sh
# Records the traces of this folder again. On a machine with nothing else to do:
#
#   sh traces/record.sh cpu
#   LLAMA='--size 380m' QWEN='--size 0.6b' sh traces/record.sh h100     (on a GPU, at real sizes)
#
# The first word begins the files' names; the rest goes to every molprof capture. The runs of one capture are
# paired: both models in one, unless their sizes differ.
set -eu
name=${1:?"a word for the files' names, such as cpu"}
shift
here=$(cd "$(dirname "$0")" && pwd)
made=$(mktemp -d "$here/.record.XXXXXX")
trap 'rm -rf "$made"' EXIT
trap 'exit 130' INT TERM HUP
cd "$made" # a trace keeps the path that it was written to
record() {
    models=$1
    case $models in llama) size=${LLAMA:-} ;; qwen) size=${QWEN:-} ;; *) size= ;; esac
    shift
    # shellcheck disable=SC2086  # the size is two words
    molprof capture --model "$models" $size -n 8 --batch-size 4 --repeats 5 "$@"
}
if [ -z "${LLAMA:-}${QWEN:-}" ]; then
    record llama,qwen --processor none,generic,grammar --disagreement "$@"
else
    record llama --processor none,generic,grammar --disagreement "$@"
    record qwen --processor none,generic,grammar --disagreement "$@"
fi
# Apart, since a placeholder is that of all processors of a capture.
record qwen --processor qwen --placeholder 0.000,0.000,0.000 --disagreement -o qwen-qwen.json.gz "$@"
record llama --processor grammar --forced-runs -o llama-jump.json.gz "$@"
record qwen --processor grammar --forced-runs -o qwen-jump.json.gz "$@"
for file in *.json.gz; do
    mv -f "$file" "$here/$name-$file"
done
