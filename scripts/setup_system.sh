#!/usr/bin/env bash
# Installs the Debian packages that the given lists name and that are missing. On a system other than Debian 12 it
# installs nothing: it says what is missing and stops.
#   scripts/setup_system.sh LIST...
set -euo pipefail

readonly log="${FLASHLIFT_SETUP_LOG:-/dev/null}"

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# package, kind of probe, what to probe
read_lists() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@"; }

is_debian_12() {
  [[ -r /etc/os-release ]] && (. /etc/os-release && [[ "${ID:-}" == debian && "${VERSION_ID:-}" == 12 ]])
}

installed() { [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

found_elsewhere() {
  case "$1" in
    command) command -v "$2" >/dev/null ;;
    header) command -v g++ >/dev/null && echo "#include <$2>" | g++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null ;;
    *) die "scripts/debian-packages*.txt: unknown probe $1" ;;
  esac
}

install_packages() {
  local as_root=()
  if [[ "$(id -u)" != 0 ]]; then
    command -v sudo >/dev/null ||
      die "these Debian packages are missing: $*. Ask root to run: apt-get install --no-install-recommends $*"
    as_root=(sudo)
  fi
  say "installing $# Debian packages: $*"
  # A third-party package source that does not answer must not stop us: whether the install works is what counts.
  "${as_root[@]}" apt-get update -qq >>"$log" 2>&1 || true
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1 ||
    die "apt-get install failed; its last lines (all of them in $log):
$(tail -n 15 "$log")"
}

main() {
  (($# > 0)) || die "usage: scripts/setup_system.sh LIST..."
  local missing=() package kind what
  while read -r package kind what; do
    if is_debian_12; then
      installed "$package" || missing+=("$package")
    else
      found_elsewhere "$kind" "$what" || missing+=("$package")
    fi
  done < <(read_lists "$@")
  ((${#missing[@]} > 0)) || return 0
  is_debian_12 || die "this is not Debian 12, so nothing is installed by itself. Missing, by Debian's package names:
  ${missing[*]}
Install what your system calls these, then run make again."
  install_packages "${missing[@]}"
}

main "$@"
