#!/usr/bin/env bash
# Runs each fuzzer of a build for some seconds, from the seeds in tests/fuzz/seeds and what earlier runs found.
#   scripts/fuzz.sh BUILD SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build="${1:?usage: scripts/fuzz.sh BUILD SECONDS}" seconds="${2:?usage: scripts/fuzz.sh BUILD SECONDS}"

failed=0
for program in "$build"/bin/*_fuzzer; do
  name="$(basename "$program" _fuzzer)"
  corpus="$build/fuzz/$name"
  mkdir -p "$corpus"
  options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=8192 -artifact_prefix="$corpus-")
  [[ ! -e "tests/fuzz/$name.dict" ]] || options+=(-dict="tests/fuzz/$name.dict")
  # A finding in LLVM's shared library is not ours to see: it is built without the sanitizers.
  if "$program" "${options[@]}" "$corpus" "tests/fuzz/seeds/$name" >"$corpus.log" 2>&1; then
    echo "$name: $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$corpus.log") inputs, no finding"
  else
    failed=1
    echo "$name: FOUND something; the log is $corpus.log. Its end:"
    grep -v '^#' "$corpus.log" | tail -n 25
  fi
done
exit "$failed"
