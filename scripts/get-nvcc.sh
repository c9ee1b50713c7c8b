#!/usr/bin/env bash
# Installs a pinned nvcc (105 MB of wheels from PyPI, no root) where build.rs looks for
# it, and prints its path. Needs bash and python3 with pip (or with venv, to get pip);
# skips what is there. Compiling with it also needs g++.
# Exit codes: 0 nvcc is in place, 1 it could not be installed, 2 usage.
set -euo pipefail

fail() {
  printf 'get-nvcc: %s\n' "$1" >&2
  exit 1
}

[ $# -eq 0 ] || { printf 'usage: scripts/get-nvcc.sh\n' >&2; exit 2; }

# Pinned together: pieces of different versions do not fit.
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
cache=${XDG_CACHE_HOME:-${HOME:?"set HOME or XDG_CACHE_HOME"}/.cache}
# build.rs has the same path; the version in it makes a newer set a new folder.
target=$cache/llama-rs/nvcc-13.0.88
nvcc=$target/nvidia/cu13/bin/nvcc
build_script=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build.rs

# cargo runs the build script again only when a file of the repository is newer.
ready() {
  touch "$build_script"
  printf '%s\n' "$nvcc"
}

if [ -x "$nvcc" ]; then
  ready
  exit 0
fi

printf 'get-nvcc: fetching nvcc 13.0 (105 MB) under the CUDA Toolkit EULA, docs.nvidia.com/cuda/eula\n' >&2
mkdir -p "$cache/llama-rs" || fail "$cache/llama-rs cannot be made; check the permissions"
# Filled apart and moved at the end, so that what is there is whole.
work=$(mktemp -d "$cache/llama-rs/.get-nvcc.XXXXXX") || fail "$cache/llama-rs cannot be written; check the permissions"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

python=$(command -v python3) || fail "python3 is missing; install python3 and pip"
if ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$work/venv" >"$work/log" 2>&1 ||
    fail "python3 has neither pip nor a working venv; install python3-pip"
  python=$work/venv/bin/python
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --target "$work/wheels" "${packages[@]}" >"$work/log" 2>&1 ||
  fail "pip could not install ${packages[*]}: $(grep -v '^WARNING' "$work/log" | tail -n 1); check the network and try again"
chmod -R u+rwX,go+rX "$work/wheels"
"$work/wheels/nvidia/cu13/bin/nvcc" --version >"$work/log" 2>&1 ||
  fail "the installed nvcc does not run: $(tail -n 1 "$work/log")"

# Another run may have been first; its copy is as good.
rm -rf "$target.old"
[ ! -e "$target" ] || mv "$target" "$target.old"
mv -T "$work/wheels" "$target" || fail "$target cannot be written"
rm -rf "$target.old"
ready
