#!/usr/bin/env bash
# Unpacks arm64 packages of Debian without installing them: the libraries that cross-compiled tests link, or what a wheel
# needs beside them, which is LLVM and MLIR to link, and a Python to test it with.
#   scripts/setup_aarch64.sh FOLDER tests|wheel
set -euo pipefail

readonly folder="$1" what="$2"
packages=(libtbb-dev libtbb12 libtbbmalloc2 libtbbbind-2-5 libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 libxxhash-dev libxxhash0
  libgtest-dev libgmock-dev libdlpack-dev nlohmann-json3-dev libcli11-dev)
if [[ "$what" == wheel ]]; then
  # The tools, too: LLVM's and MLIR's CMake packages are refused where a file that they name is missing.
  packages+=(llvm-22 llvm-22-dev llvm-22-linker-tools llvm-22-runtime llvm-22-tools libllvm22 libmlir-22 libmlir-22-dev
    mlir-22-tools libcurl4-openssl-dev libedit-dev libxml2-dev libzstd-dev libzstd1 zlib1g zlib1g-dev
    python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libbz2-1.0 libexpat1 libffi8 liblzma5 libsqlite3-0
    libssl3)
fi
readonly packages

[[ -e "$folder/complete-$what" ]] && exit 0
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
touch "$folder/complete-$what"
