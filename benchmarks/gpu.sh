#!/bin/sh
# Everything that a GPU has to show, measured by one command on a machine with one NVIDIA GPU. Needs no network.
#
#   sh benchmarks/gpu.sh results                all parts: 25 minutes at most
#   sh benchmarks/gpu.sh results qwen llama     some parts, each 8 minutes at most
#   SIZE=tiny sh benchmarks/gpu.sh rehearsal    the same steps on a CPU, with tiny models
#
# The folder gets a file for each step, and log.txt. Run it again to go on: a step whose file is there is not repeated.
# Exit code 1: a step has left no file. Read the traces with molprof report and compare, the results with molprof bench
# show. PYTHON: the Python that has molprof.
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} size=${SIZE:-full} missing=0 running=
# Whoever stops this script stops the running step too.
trap '[ -z "$running" ] || kill "$running"; exit 143' TERM
trap '[ -z "$running" ] || kill "$running"; exit 130' INT

tiny() { [ "$size" = tiny ]; }

say() { echo "$part: $*" >&2; }

step() { # FILE LIMIT_S COMMAND...: a command, within the part's time; results of a benchmark that failed are kept
  file=$1 limit=$2 && shift 2
  begun=$(date +%s)
  left=$((ends - begun))
  tiny && limit=900 left=900 # nothing is learned from how long a rehearsal takes
  [ -e "$file" ] && say "$file: there already" && return
  [ "$left" -lt 5 ] && say "$file: left out, the part's time is over; run it again" && missing=1 && return
  say "$file ..."
  echo "== $part $file: $*" >> log.txt
  timeout -k 10 "$((limit < left ? limit : left))" "$@" -o "unfinished-$file" >> log.txt 2>&1 &
  running=$!
  wait "$running"
  code=$? running=
  if [ "$code" = 0 ] && mv "unfinished-$file" "$file"; then
    say "$file: done after $(($(date +%s) - begun)) s"
  else
    missing=1
    [ "${file%.jsonl}" != "$file" ] || [ -d "unfinished-$file" ] || rm -f "unfinished-$file"
    say "$file: failed after $(($(date +%s) - begun)) s, code $code: $(tail -n 1 log.txt)"
  fi
}

molprof() { # FILE LIMIT_S ARGUMENTS...
  file=$1 limit=$2 && shift 2
  step "$file" "$limit" "$python" -m molprof "$@"
}

full_size() { # MODEL: its size on a GPU
  tiny || case $1 in
    qwen) echo --size 0.6b --dtype bfloat16 ;;
    llama) echo --size 380m --dtype bfloat16 ;;
  esac
}

capture() { # NAME MODEL LIMIT_S OPTIONS...
  name=$1 model=$2 limit=$3 && shift 3
  few="-n 64 --batch-size 32 --repeats 3 --window 20:29"
  tiny && few="-n 2 --batch-size 2 --max-new-tokens 32 --repeats 1 --warmup 0 --window 4:7 --device cpu --threads 1"
  molprof "$name.json.gz" "$limit" capture --model "$model" $(full_size "$model") $few "$@"
}

options() { # what a trace is called after its model: the options that make it
  case $1 in
    -jump) echo --processor grammar --forced-runs ;;
    -*) echo --processor "${1#-}" ;;
  esac
}

# The parts, the most telling steps first. `ends` is when the time of the running part is over.
processors_of() { # MODEL: each processor, and without
  for run in "" -generic -grammar -jump -qwen -vectorized -truncate; do
    capture "$1$run" "$1" 150 $(options "$run")
  done
}

part_qwen() { molprof doctor.json 100 doctor --format json && processors_of qwen; }

part_llama() { processors_of llama; }

part_graphs() { # a static cache and a compiled forward: CUDA graphs
  compiled=auto
  tiny && compiled=eager # without a GPU there are none: this rehearses the same path in seconds
  for run in "" -grammar -jump -generic; do
    for of in qwen llama; do
      capture "$of-static$run" "$of" 200 $(options "$run") --kv-cache static --compile "$compiled"
    done
  done
}

part_costs() { # what processors cost, XGrammar and llguidance beside them
  few="-n 64 --batch-size 32" rounds=2 repeats=3 once="--repeats 1"
  tiny && few="-n 2 --batch-size 2 --max-new-tokens 32 --device cpu" rounds=1 repeats=1 once=
  for of in qwen llama; do
    common="--models $of $few $(full_size "$of")"
    step "processors-$of.json" 200 "$python" "$here/processors.py" $common --rounds "$rounds"
    step "decoding-$of.json" 200 "$python" "$here/decoding.py" $common --repeats "$repeats"
  done
  for peer in xgrammar llguidance; do
    for of in qwen llama; do capture "$of-$peer" "$of" 150 --processor "$peer" $once; done
  done
}

part_attention() { # attention kernels, and batches up to out of memory: the last is larger than any GPU's memory
  common="--limit 60 --resume" tokens=96 kernels=all rows=16 batches=16,128,1024,4096,16384
  shape="--shape 4x16x16x2048x64"
  if tiny; then
    common="$common --device cpu --threads 1" tokens=8 kernels=eager,sdpa,sdpa-flash rows=2 batches=1,2
    shape="--shape 1x2x1x16x8 --phase decode"
  fi
  model="--model qwen $(full_size qwen) --max-new-tokens $tokens"
  once="--processes 1 $common"
  molprof attention 150 sweep attention $model --attention "$kernels" --batch-size "$rows" $once
  molprof sdpa.jsonl 150 bench sdpa $shape --repeats 1 $common
  molprof batch 150 sweep batch $model -n 1 --kv-cache dynamic --batch-size "$batches" $once
}

part_vllm() { # its masks, in an environment with it
  few="--requests 1,32 --repeats 4"
  tiny && few="--requests 2 --repeats 1 --backends xgrammar --max-new-tokens 8"
  for of in qwen llama; do
    step "vllm-$of.json" 200 "$python" "$here/engines.py" --models "$of" $few $(full_size "$of")
  done
}

limit_of() { # PART: its time, s
  case $1 in
    qwen) echo 420 ;; llama) echo 240 ;; graphs) echo 250 ;; costs) echo 220 ;; attention) echo 300 ;; vllm) echo 400 ;;
    *) echo "no part $1: qwen, llama, graphs, costs, attention or vllm" >&2 && exit 2 ;;
  esac
}

[ $# -gt 0 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" && exit 2; }
mkdir -p "$1" && cd "$1" && shift || exit 2
tiny || "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" ||
  { echo "torch sees no GPU here; molprof doctor says why, and SIZE=tiny rehearses on a CPU" >&2 && exit 1; }
if [ $# = 0 ]; then
  set -- qwen llama graphs costs attention
  ! "$python" -c "import vllm" 2> log.txt || set -- "$@" vllm
fi
for part in "$@"; do
  limit=$(limit_of "$part") || exit 2
  ends=$(($(date +%s) + limit))
  "part_$part"
done
exit "$missing"
