#!/usr/bin/env bash
# Runs each fuzzer of a build for some seconds, from the seeds in tests/fuzz/seeds and what earlier runs found.
#   scripts/fuzz.sh BUILD SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build="${1:?usage: scripts/fuzz.sh BUILD SECONDS}" seconds="${2:?usage: scripts/fuzz.sh BUILD SECONDS}"

# How far a fuzzer is, every few seconds: on a terminal in one line, elsewhere once a minute.
watch() {
  local name="$1" log="$2" pid="$3" start="$SECONDS" last=0
  while kill -0 "$pid" 2>/dev/null; do
    sleep 2
    local spent=$((SECONDS - start)) inputs
    inputs="$(grep -ao '^#[0-9]*' "$log" | tail -n 1 | tr -d '#' || true)"
    if [[ -t 1 ]]; then
      printf '\r%s: %d of %d s, %s inputs' "$name" "$spent" "$seconds" "${inputs:-0}"
    elif ((spent - last >= 60)); then
      last=$spent
      echo "$name: $spent of $seconds s, ${inputs:-0} inputs"
    fi
  done
  [[ ! -t 1 ]] || printf '\r\033[K'
}

# LLVM's headers poison memory that LLVM's shared library, which is built without the sanitizers, then uses.
export ASAN_OPTIONS="allow_user_poisoning=0:${ASAN_OPTIONS:-}"

failed=()
count=0
for program in "$build"/bin/*_fuzzer; do
  name="$(basename "$program" _fuzzer)"
  corpus="$build/fuzz/$name"
  mkdir -p "$corpus"
  options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=8192 -artifact_prefix="$corpus-")
  [[ ! -e "tests/fuzz/$name.dict" ]] || options+=(-dict="tests/fuzz/$name.dict")
  # The sanitizers check nothing in LLVM's shared library, which is built without them.
  "$program" "${options[@]}" "$corpus" "tests/fuzz/seeds/$name" >"$corpus.log" 2>&1 &
  watch "$name" "$corpus.log" "$!"
  count=$((count + 1))
  if wait "$!"; then
    echo "$name: $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$corpus.log") inputs, no finding"
  else
    failed+=("$name")
    echo "$name: FOUND something; the log is $corpus.log. Its end:"
    grep -av '^#' "$corpus.log" | tail -n 25
  fi
done
echo "fuzz: $((count - ${#failed[@]})) of $count fuzzers without a finding${failed[*]:+; found by: ${failed[*]}}"
((${#failed[@]} == 0))
