# Compares BASE with HEAD: a summary in Markdown, a page, outputs of the step. The exit code is 1 if a threshold failed.
set -euo pipefail

folder=$(mktemp -d "${RUNNER_TEMP:-/tmp}/molprof-diff.XXXXXX")
# A line is one word, whatever is in it.
words=()
while IFS= read -r line; do
  if [[ -n ${line//[[:space:]]/} ]]; then words+=("$line"); fi
done <<< "$OPTIONS"
bounds=()
while IFS= read -r line; do
  if [[ -n ${line//[[:space:]]/} ]]; then bounds+=(--fail-if "$line"); fi
done <<< "$FAIL_IF"
case $UNDECIDED in
  pass | fail) ;;
  *) echo "::error::undecided: $UNDECIDED is neither pass nor fail"; exit 2 ;;
esac

code=0
molprof compare ${words[@]+"${words[@]}"} ${bounds[@]+"${bounds[@]}"} -o "$folder/summary.md" -- "$BASE" "$HEAD" \
  2> "$folder/said.txt" || code=$?
cat "$folder/said.txt" >&2
if [[ ! -s $folder/summary.md ]]; then
  # Without a result, exit code 3 is of a trace that cannot be read.
  echo "verdict=failed" >> "$GITHUB_OUTPUT"
  { echo "molprof could not compare the traces:"; echo '```'; cat "$folder/said.txt"; echo '```'; } >> "$GITHUB_STEP_SUMMARY"
  exit "$code"
fi
case $code in
  0) verdict=passed ;;
  3) verdict=undecided ;;
  *) verdict=failed ;;
esac
# The reports are in the cache now.
molprof compare ${words[@]+"${words[@]}"} -o "$folder/molprof-diff.html" -- "$BASE" "$HEAD" 2> /dev/null || true
{
  echo "verdict=$verdict"
  if [[ -s $folder/molprof-diff.html ]]; then echo "page=$folder/molprof-diff.html"; fi
} >> "$GITHUB_OUTPUT"
{
  if ((${#bounds[@]})); then
    echo "**Thresholds: $verdict**"
    echo '```'
    grep -E '^(failed|undecided|not failed): ' "$folder/said.txt" || echo "all hold"
    echo '```'
  fi
  cat "$folder/summary.md"
} >> "$GITHUB_STEP_SUMMARY"
if [[ $verdict == undecided && $UNDECIDED == pass ]]; then
  exit 0
fi
exit "$code"
