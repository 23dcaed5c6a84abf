#!/bin/sh
# Records the traces of this folder again. On a machine with nothing else to do:
#
#   sh traces/record.sh cpu --threads 2
#   sh traces/record.sh h100 --size full --dtype bfloat16    (on a GPU)
#
# The first word begins the files' names; the rest goes to every molprof capture.
set -eu
name=${1:?"a word for the files' names, such as cpu"}
shift
here=$(cd "$(dirname "$0")" && pwd)
record() {
    file=$1
    shift
    molprof capture -n 16 --batch-size 8 --repeats 5 -o "$here/$name-$file.json.gz" --force "$@"
}
record llama --model llama --no-lp "$@"
record qwen --model qwen --no-lp "$@"
record llama-generic --model llama --processor generic --disagreement "$@"
record qwen-qwen --model qwen --processor qwen --disagreement "$@"
record qwen-generic --model qwen --processor generic --disagreement "$@"
record llama-grammar --model llama --processor grammar --disagreement "$@"
record qwen-grammar --model qwen --processor grammar --disagreement "$@"
record llama-jump --model llama --processor grammar --forced-runs "$@"
record qwen-jump --model qwen --processor grammar --forced-runs "$@"
