#!/bin/sh
# Records the traces of this folder again. On a machine with nothing else to do:
#
#   sh traces/record.sh cpu --threads 2
#   LLAMA='--size 380m' QWEN='--size 0.6b' sh traces/record.sh h100     (on a GPU, at real sizes)
#
# The first word begins the files' names; the rest goes to every molprof capture.
set -eu
name=${1:?"a word for the files' names, such as cpu"}
shift
here=$(cd "$(dirname "$0")" && pwd)
record() {
    model=$1
    case $model in llama) size=${LLAMA:-} ;; *) size=${QWEN:-} ;; esac
    file=$2
    shift 2
    # shellcheck disable=SC2086  # the size is two words
    molprof capture --model "$model" $size -n 8 --batch-size 4 --repeats 4 -o "$here/$name-$file.json.gz" --force "$@"
}
record llama llama --no-lp "$@"
record qwen qwen --no-lp "$@"
record llama llama-generic --processor generic --disagreement "$@"
record qwen qwen-qwen --processor qwen --placeholder 0.000,0.000,0.000 --disagreement "$@"
record qwen qwen-generic --processor generic --disagreement "$@"
record llama llama-grammar --processor grammar --disagreement "$@"
record qwen qwen-grammar --processor grammar --disagreement "$@"
record llama llama-jump --processor grammar --forced-runs "$@"
record qwen qwen-jump --processor grammar --forced-runs "$@"
