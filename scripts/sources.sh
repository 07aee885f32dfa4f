#!/usr/bin/env bash
# Prints the project's C++ files, tracked or new, that end in one of the given suffixes (default: all of them).
#   scripts/sources.sh [SUFFIX...]
set -euo pipefail
cd "$(dirname "$0")/.."

(($# > 0)) || set -- h def cpp
git ls-files --cached --others --exclude-standard -- "${@/#/*.}" | while read -r file; do
  [[ ! -e "$file" ]] || echo "$file"
done
