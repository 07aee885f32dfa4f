#!/usr/bin/env bash
# Unpacks the arm64 libraries that cross-compiled tests link, from Debian's packages, without installing them.
#   scripts/setup_aarch64.sh FOLDER
set -euo pipefail

readonly folder="$1"
readonly packages=(libtbb-dev libtbb12 libtbbmalloc2 libtbbbind-2-5 libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 libxxhash-dev libxxhash0
  libgtest-dev libgmock-dev libdlpack-dev nlohmann-json3-dev libcli11-dev)

[[ -e "$folder/complete" ]] && exit 0
mkdir -p "$folder/lists/partial" "$folder/packages" "$folder/root"
# Package lists of its own: the system's need not know the architecture.
apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$PWD/$folder/lists" \
    -o APT::Sandbox::User=root "$@"
}
echo "==> unpacking ${#packages[@]} arm64 packages in $folder/"
apt update
(cd "$folder/packages" && apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 \
  -o "Dir::State::Lists=$PWD/../lists" -o APT::Sandbox::User=root download "${packages[@]}")
for package in "$folder"/packages/*.deb; do
  dpkg -x "$package" "$folder/root"
done
touch "$folder/complete"
