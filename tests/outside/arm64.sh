#!/usr/bin/env bash
# Tests of the C++ kernels on arm64, by emulation of one process: qemu-user runs Debian's Python of that machine with torch's
# wheel for it, and the cross-compiler builds the library. `make test-arm64` and .ci/arm64 call this; what follows is for
# pytest, or --prepare, after which all is there that must be fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly TORCH='torch==2.8.*' # the last wheels for arm64 that do not want CUDA's libraries
readonly HOME_DIR=.kvasir/arm64
readonly ROOT=$HOME_DIR/root SITE=$HOME_DIR/site PYTHON=3.11
readonly PACKAGES=(numpy pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis msgspec pydantic pyzmq tokenizers safetensors click)

# Debian's packages, where they are missing and root can install them.
provide() {
  local missing=()
  command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
  command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
  command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
  if [ ${#missing[@]} = 0 ]; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "error: the kernels of arm64 are tested with Debian's ${missing[*]}: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "arm64: installing ${missing[*]}"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 install --no-install-recommends "${missing[@]}" >/dev/null
}

# Python and its packages, of the versions that the pins have but for torch; what is whole is not fetched again.
fetch() {
  mkdir -p "$HOME_DIR"
  if [ ! -e "$ROOT.whole" ]; then
    echo "arm64: fetching Debian's Python"
    rm -rf "$ROOT"
    mmdebstrap --quiet --architectures=arm64 --variant=extract --include=python3,libgomp1,libstdc++6 bookworm "$ROOT"
    touch "$ROOT.whole"
  fi
  if ! cmp -s constraints.txt "$SITE.pins"; then
    echo "arm64: fetching torch and what tests need"
    rm -rf "$SITE"
    grep -v '^torch==' constraints.txt | sed -n 's/^\([A-Za-z0-9_.-]*==[^\\]*[^ \\]\) *\\$/\1/p' >"$HOME_DIR/pins.txt"
    .venv/bin/uv pip install --quiet --target "$SITE" --python-platform aarch64-manylinux_2_28 --python-version $PYTHON \
      --only-binary :all: --constraint "$HOME_DIR/pins.txt" "$TORCH" "${PACKAGES[@]}"
    cp constraints.txt "$SITE.pins"
  fi
}

provide
fetch
if [ "${1-}" = --prepare ]; then exit 0; fi
readonly LIBRARY=$PWD/$HOME_DIR/libkvasir.so
.venv/bin/python -m kvasir_runtime.kernels.cpu.build --machine aarch64 --output "$LIBRARY"
exec env PYTHONPATH="runtime:crds:operator:tests:$SITE" KVASIR_CPU_LIBRARY="$LIBRARY" CXX=aarch64-linux-gnu-g++ \
  qemu-aarch64-static -L "$ROOT" "$ROOT/usr/bin/python$PYTHON" -m pytest -p no:cacheprovider -o timeout=0 "$@"
