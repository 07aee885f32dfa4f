#!/usr/bin/env bash
# Runs CMake's configuration, showing its output only where it failed.
#   scripts/configure.sh PRESET BUILD_FOLDER VENV
set -euo pipefail

readonly preset="$1" folder="$2" venv="$3"

mkdir -p "$folder"
printf '==> configuring %s/\n' "$folder"
if ! cmake --preset "$preset" -DPython_EXECUTABLE="$PWD/$venv/bin/python" >"$folder/configure.log" 2>&1; then
  cat "$folder/configure.log" >&2
  exit 1
fi
