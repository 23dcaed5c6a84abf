#!/bin/sh
# Whether molprof works with the oldest and the newest torch and transformers that setup.cfg allows.
#
#   sh benchmarks/versions.sh [FOLDER]
#
# FOLDER (default: versions) gets an environment and traces for each set of versions; an environment that is there is
# used again. The oldest set needs PYTHON, the oldest that is allowed (default: python3.10). Exit code 1: a step failed.
# It downloads torch: PIP_INDEX_URL=https://download.pytorch.org/whl/cpu with PIP_EXTRA_INDEX_URL=https://pypi.org/simple
# saves gigabytes of NVIDIA's libraries.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-versions}" && cd "${1:-versions}" || exit 1
export HF_HUB_OFFLINE=1 MOLPROF_CACHE="$PWD/cache"
small="-n 2 --batch-size 2 --repeats 1 --max-new-tokens 24 --threads 1 --force"
failed=0

installed() { # SET PYTHON REQUIREMENTS...: an environment with molprof, from a clone, in which setuptools may build
  set=$1 python=$2 && shift 2
  [ -x "$set/bin/molprof" ] && return
  rm -rf "$set" source && git clone -q "$here" source && "$python" -m venv "$set" &&
    "$set/bin/pip" install -q "./source[presets,xgrammar,llguidance]" "$@"
}

step() { # SET ARGUMENTS...: one command of molprof
  set=$1 && shift
  if "../$set/bin/molprof" "$@" > log.txt 2>&1; then
    echo "$set: ok: molprof $*"
  else
    failed=1
    echo "$set: failed: molprof $*: $(tail -n 1 log.txt)"
  fi
}

tried() { # SET PYTHON REQUIREMENTS...
  name=$1
  installed "$@" || { failed=1 && echo "$name: not installed" && return; }
  "$name/bin/pip" list 2> /dev/null | grep -E '^(torch|transformers) '
  mkdir -p "$name-traces" && cd "$name-traces" || exit 1
  rm -f sdpa.jsonl # results are added to a file
  step "$name" doctor
  step "$name" capture --model qwen $small -o qwen.json.gz
  step "$name" capture --model llama $small --attention eager -o llama.json.gz
  step "$name" capture --model qwen --lp --disagreement $small -o lp.json.gz
  step "$name" capture --model llama --processor grammar --forced-runs $small -o jump.json.gz
  step "$name" capture --model qwen --processor vectorized --kv-cache static $small -o static.json.gz
  step "$name" capture --model llama --processor xgrammar $small -o xgrammar.json.gz
  step "$name" capture --model qwen --processor llguidance $small -o llguidance.json.gz
  step "$name" bench sdpa --shape 1x2x2x16x32 --backend auto,math --repeats 1 --threads 1 -o sdpa.jsonl
  step "$name" report --no-cache qwen.json.gz lp.json.gz jump.json.gz static.json.gz
  step "$name" compare --no-cache qwen.json.gz lp.json.gz
  cd ..
}

# The lower bounds of the extra `capture`.
oldest=$(sed -n '/^capture =/,/^[a-z]* =$/s/^ *\(torch\|transformers\)>=\(.*\)$/\1==\2/p' "$here/setup.cfg")
tried oldest "${PYTHON:-python3.10}" $oldest
tried newest python3
exit $failed
