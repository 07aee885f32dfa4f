#!/usr/bin/env bash
# Checks format, layer order, Python, and clang-tidy's findings. BUILD is a configured build folder, with an environment for
# Python in it. With --changed, clang-tidy reads only what a change touches, and scripts/changed.sh says what that is; with
# --without-tidy it reads nothing.
#   scripts/lint.sh [--changed|--without-tidy] BUILD
set -euo pipefail
cd "$(dirname "$0")/.."

changed=0
tidy=1
[[ "${1:-}" != --changed ]] || { changed=1; shift; }
[[ "${1:-}" != --without-tidy ]] || { tidy=0; shift; }
readonly build="${1:?usage: scripts/lint.sh [--changed|--without-tidy] BUILD}"
readonly python="$build/venv/bin/python"

# Of a changed header, one source that includes it: clang-tidy reports on the project's headers too.
sources_to_tidy() {
  if ((!changed)); then
    scripts/sources.sh cpp
    return
  fi
  scripts/changed.sh | while read -r file; do
    case "$file" in
      *.cpp) echo "$file" ;;
      *.h | *.def)
        name="${file#src/}"
        { scripts/sources.sh cpp | xargs grep -lF "#include \"${name#include/}\"" || true; } | head -n 1
        ;;
    esac
  done | sort -u
}

echo "==> format"
scripts/format.sh --check
"$python" -m ruff format --quiet --check . || { echo "Python files are not formatted; run make format"; exit 1; }
echo "==> layer order"
"$python" tests/layers/layers_test.py .
echo "==> ruff"
"$python" -m ruff check --quiet .
echo "==> mypy"
"$python" -m mypy
((tidy)) || exit 0
echo "==> clang-tidy"
# The examples are projects of their own, built against the installed package.
mapfile -t files < <(sources_to_tidy | grep -v -e '^tests/' -e '^examples/' || true)
if ((${#files[@]} == 0)); then
  echo "nothing to read"
  exit
fi
run-clang-tidy-22 -quiet -p "$build" -j "$(nproc)" "${files[@]/#/^$PWD/}" >"$build/clang-tidy.log" 2>/dev/null || {
  grep -E -A3 '(warning|error):' "$build/clang-tidy.log"
  exit 1
}
echo "clean: ${#files[@]} sources"
