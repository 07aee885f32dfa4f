#!/usr/bin/env bash
# Prints the files that a change touches and that exist: what differs from where this branch left main, or on main itself
# from the commit before, and what is not committed yet. Fails where history does not go back that far (a checkout of one
# commit).
#   scripts/changed.sh
set -euo pipefail
cd "$(dirname "$0")/.."

base=""
for main in origin/main main; do
  if base="$(git merge-base "$main" HEAD 2>/dev/null)" && [[ "$base" != "$(git rev-parse HEAD)" ]]; then
    break
  fi
  base=""
done
[[ -n "$base" ]] || base="$(git rev-parse --verify --quiet HEAD^)" || {
  echo "error: the checkout has one commit only, so what it changed is not known" >&2
  exit 1
}
{ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | sort -u
