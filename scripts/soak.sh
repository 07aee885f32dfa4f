#!/usr/bin/env bash
# Draws COUNT problems forward and COUNT backward for each instruction set that this machine has.
#   scripts/soak.sh BUILD COUNT
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build="${1:?usage: scripts/soak.sh BUILD COUNT}" count="${2:?usage: scripts/soak.sh BUILD COUNT}"
readonly not_here=77  # soak's exit code where the processor lacks the instruction set

summary=()
failed=0
seed=1
for isa in avx2 avx512 avx512_bf16 amx; do
  for direction in forward backward; do
    echo "==> $direction, $isa"
    code=0
    "$build/bin/soak" "$direction" --isa "$isa" --count "$count" --seed "$seed" || code=$?
    seed=$((seed + count))
    case "$code" in
      0) summary+=("$isa $direction: clean") ;;
      "$not_here") summary+=("$isa $direction: not on this processor") ;;
      *) summary+=("$isa $direction: FAILED") failed=1 ;;
    esac
  done
done
echo "soak, $count problems each:"
printf '  %s\n' "${summary[@]}"
exit "$failed"
