#!/usr/bin/env bash
# Checks format, layer order and clang-tidy's findings. BUILD is a configured build folder.
#   scripts/lint.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build="${1:?usage: scripts/lint.sh BUILD}"

echo "==> format"
scripts/format.sh --check
echo "==> layer order"
"$build/venv/bin/python" tests/layers/layers_test.py .
echo "==> clang-tidy"
# The examples are projects of their own, built against the installed package.
mapfile -t files < <(scripts/sources.sh cpp | grep -v -e '^tests/' -e '^examples/')
run-clang-tidy-22 -quiet -p "$build" -j "$(nproc)" "${files[@]/#/^$PWD/}" >"$build/clang-tidy.log" 2>/dev/null || {
  grep -E -A3 '(warning|error):' "$build/clang-tidy.log"
  exit 1
}
echo "clean"
