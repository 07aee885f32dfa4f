#!/usr/bin/env bash
# Builds and runs under AddressSanitizer and UBSan the tests of the parts that a change touches. After SECONDS it stops, and
# prints that it did; `make asan` runs everything.
#   scripts/asan_changed.sh BUILD SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build="${1:?usage: scripts/asan_changed.sh BUILD SECONDS}"
readonly limit="${2:?usage: scripts/asan_changed.sh BUILD SECONDS}"

# A folder of src/ and of tests/, and the tests that run its code.
readonly tests="\
support support_test
score score_test
problem problem_test
visits visits_test
plan plan_test
cpu cpu_test
runtime runtime_test
capi capi_test
stablehlo stablehlo_reader_test stablehlo_algebra_test stablehlo_fuse_test stablehlo_rewrite_test"

changed="$(scripts/changed.sh)" || exit 0
mapfile -t targets < <(while read -r part names; do
  if grep -qE "^(src|tests)/$part/" <<<"$changed"; then tr ' ' '\n' <<<"$names"; fi
done <<<"$tests")
if ((${#targets[@]} == 0)); then
  echo "==> sanitizers: no C++ changed"
  exit
fi
if ((limit < 120)); then
  echo "==> sanitizers: no time is left; run make asan"
  exit
fi

echo "==> sanitizers: ${targets[*]}"
check() {
  scripts/configure.sh asan "$build" build/venv
  cmake --build "$build" --target "${targets[@]}" -- --quiet
  ctest --test-dir "$build" --output-on-failure --no-tests=error -j"$(nproc)" \
    -R "^($(IFS='|'; echo "${targets[*]}"))\$"
}
export -f check
export build
status=0
timeout "$limit" bash -euo pipefail -c "$(declare -p targets); check" || status=$?
if ((status == 124)); then
  echo "==> sanitizers: given up after $limit seconds; run make asan"
  exit
fi
exit "$status"
