#!/usr/bin/env bash
# Formats the project's C++ files in place; with --check, only lists those that are not formatted, and fails.
#   scripts/format.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(scripts/sources.sh)
if [[ "${1:-}" == --check ]]; then
  wrong=0
  for file in "${files[@]}"; do
    clang-format-22 "$file" | cmp -s - "$file" || { echo "$file is not formatted; run make format"; wrong=1; }
  done
  exit "$wrong"
fi
clang-format-22 -i "${files[@]}"
