#!/usr/bin/env bash
# The GPU test suite from a carried folder, for a machine with a GPU but without Rust:
# prints a table of what passed. Collecting needs cargo, python3 with pip and nvcc
# (scripts/get-nvcc.sh; LLAMA_RS_CUDA_ARCHS=90a keeps the folder small for an H200);
# running needs bash and an NVIDIA driver.
# Exit codes: 0 nothing failed, 1 something failed, 2 usage.
set -euo pipefail

usage='usage: scripts/gpu-test.sh --collect DIR
       scripts/gpu-test.sh [--require] [--only PART,...] [--models MODELS] DIR
  --collect  build the program and the tests, and put into DIR what a run needs
  --require  a missing GPU is a failure, not a reason to skip
  --only     devices, op_parity, arch, sequences, lookup, launches, mamba_token, experts, clusters_ops, clusters, planned, golden, determinism, memcheck, racecheck, initcheck
  --models   folder with the model files of golden and determinism (get-model.sh)'

parts=(devices op_parity arch sequences lookup launches mamba_token experts clusters_ops clusters planned golden determinism memcheck racecheck initcheck)
sanitizer_package=nvidia-cuda-sanitizer-api==13.0.85

fail() {
  printf 'gpu-test: %s\n' "$1" >&2
  exit "${2:-1}"
}

bad_usage() {
  fail "$1
$usage" 2
}

# --- collecting ---

# Prints "name path" of the program and of each test that cargo built.
executables() {
  cargo test --release --no-run --message-format=json \
    --test op_parity --test arch --test sequences --test lookup --test launches --test mamba_token --test planned_cuda --test golden |
    python3 -c '
import json, sys
for line in sys.stdin:
    built = json.loads(line) if line.startswith("{") else {}
    if built.get("reason") == "compiler-artifact" and built.get("executable"):
        print(built["target"]["name"], built["executable"])'
}

# compute-sanitizer from its wheel (18 MB), packed.
collect_sanitizer() {
  local work
  work=$(mktemp -d)
  if python3 -m pip install --quiet --disable-pip-version-check --no-deps \
    --only-binary=:all: --target "$work" "$sanitizer_package"; then
    chmod -R u+rwX "$work"
    chmod u+x "$work/nvidia/cu13/bin/compute-sanitizer"
    tar -C "$work/nvidia/cu13" -czf "$1/sanitizer.tar.gz" bin lib
  else
    printf 'gpu-test: no compute-sanitizer in %s; the GPU machine must have one\n' "$1" >&2
  fi
  rm -rf "$work"
}

collect() {
  local to=$1 root name path
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  mkdir -p "$to/data" || fail "$to cannot be made"
  to=$(cd "$to" && pwd)
  cd "$root"
  executables >"$to/built" || fail "cargo could not build the tests; see above"
  while read -r name path; do
    cp "$path" "$to/$name"
    strip "$to/$name"
  done <"$to/built"
  rm "$to/built"
  for name in llama-rs op_parity arch sequences lookup launches mamba_token planned_cuda golden; do
    [ -x "$to/$name" ] || fail "cargo built no $name"
  done
  rm -rf "$to/data/arch" "$to/data/golden"
  cp -r tests/data/arch tests/data/golden "$to/data/"
  # Tiny models that are not committed (tests/common/mod.rs names them), where they are.
  for name in $(sed -n '/^const BESIDE/,/^]/s/^ *"\(.*\)",$/\1/p' tests/common/mod.rs); do
    [ ! -f "../shared/data/arch/$name.gguf" ] ||
      cp "../shared/data/arch/$name".{gguf,json} "$to/data/arch/"
  done
  cp scripts/gpu-test.sh "$to/"
  collect_sanitizer "$to"
  "$to/llama-rs" devices --json | grep -q '"kernels":true' ||
    printf 'gpu-test: this build has no CUDA kernels: run scripts/get-nvcc.sh, collect again\n' >&2
  du -sh "$to"
}

# --- running ---

declare -A passed failed skipped seconds

# Records the result of part $1: passed, failed, skipped.
record() {
  passed[$1]=$2 failed[$1]=$3 skipped[$1]=$4
}

# Without a GPU: skipped, or failed when one must be there.
no_gpu() {
  if [ "$require" = 1 ]; then
    printf '%s: %s\n' "$1" "$2" >&2
    record "$1" 0 1 0
  else
    record "$1" 0 0 1
  fi
}

# Runs a test program as part $1; what follows is its command.
run_tests() {
  local part=$1 log=$logs/$1.log counts
  shift
  local status=0
  "$@" >"$log" 2>&1 || status=$?
  counts=$(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored;.*/\1 \2 \3/p' "$log" | tail -n 1)
  if [ -z "$counts" ]; then
    record "$part" 0 1 0
  else
    # shellcheck disable=SC2086 # three numbers
    record "$part" $counts
    [ "$status" = 0 ] || [ "${failed[$part]}" != 0 ] || failed[$part]=1
  fi
  [ "${failed[$part]}" = 0 ] || show "$part" "$log"
}

# The failures in a log, or its end.
show() {
  printf '\n%s (all of it in %s):\n' "$1" "$2" >&2
  if grep -q '^---- ' "$2"; then
    awk '/^---- / { lines = 3 } lines-- > 0' "$2" | sed -n 1,60p >&2
  else
    tail -n 20 "$2" >&2
  fi
}

part_devices() {
  local log=$logs/devices.log
  if "$here/llama-rs" devices >"$log" 2>&1; then
    cat "$log"
    if [ "$gpu" = 1 ]; then record devices 1 0 0; else no_gpu devices "no usable GPU"; fi
  else
    record devices 0 1 0
    show devices "$log"
  fi
}

part_op_parity() { run_tests op_parity "$here/op_parity" -q; }

part_arch() { run_tests arch "$here/arch" -q; }

part_sequences() { run_tests sequences "$here/sequences" -q; }

part_lookup() { run_tests lookup "$here/lookup" -q; }

part_launches() { run_tests launches "$here/launches" -q; }

part_mamba_token() { run_tests mamba_token "$here/mamba_token" -q; }

# Products by clusters of blocks, which are off otherwise.
part_clusters_ops() { run_tests clusters_ops env LLAMA_RS_CLUSTERS=on "$here/op_parity" -q MUL_MAT; }

# Launches for several of experts, which are off otherwise.
part_experts() { run_tests experts env LLAMA_RS_EXPERTS=on "$here/op_parity" -q MOE; }

part_clusters() { run_tests clusters env LLAMA_RS_CLUSTERS=on "$here/sequences" -q; }

part_planned() { run_tests planned "$here/planned_cuda" -q; }

part_golden() { run_tests golden "$here/golden" -q; }

# Ten runs of the command in "$@" print the same bytes.
ten_alike() {
  local first='' sum
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    sum=$("$@" 2>>"$logs/determinism.log" | sha256sum) || return 1
    [ "$sum" = "${first:=$sum}" ] || return 1
  done
}

part_determinism() {
  [ "$gpu" = 1 ] || { no_gpu determinism "no usable GPU"; return; }
  local good=0 bad=0 model
  : >"$logs/determinism.log"
  shopt -s nullglob
  for model in "$models"/*.gguf; do
    if ten_alike "$here/llama-rs" simple -m "$model" -ngl all -n 256 --seed 1 \
      "Once upon a time"; then good=$((good + 1)); else
      printf 'determinism: %s gives other bytes, or fails\n' "$model" >&2
      bad=$((bad + 1))
    fi
  done
  # Tiny models without a vocabulary: token ids in, logits out.
  for model in llama-dense-Q4_K_M qwen3moe-moe-Q4_K_M mamba2-dense-Q8_0 qwen35-dense-Q4_K_M; do
    if ten_alike "$here/llama-rs" logits -m "$here/data/arch/$model.gguf" -ngl all -n 64 \
      --tokens 42,122,20,51,84,7,10,106,69,13,47,75; then good=$((good + 1)); else
      printf 'determinism: %s gives other bytes, or fails\n' "$model" >&2
      bad=$((bad + 1))
    fi
  done
  record determinism "$good" "$bad" 0
}

# Prints the path of compute-sanitizer.
find_sanitizer() {
  if [ -n "${COMPUTE_SANITIZER:-}" ]; then
    printf '%s\n' "$COMPUTE_SANITIZER"
  elif [ -f "$here/sanitizer.tar.gz" ]; then
    mkdir -p "$logs/sanitizer"
    tar -C "$logs/sanitizer" -xzf "$here/sanitizer.tar.gz"
    printf '%s\n' "$logs/sanitizer/bin/compute-sanitizer"
  else
    command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1
  fi
}

# One small case for every kernel under a tool of compute-sanitizer.
sanitize() {
  local tool=$1 sanitizer log=$logs/$1.log
  [ "$gpu" = 1 ] || { no_gpu "$tool" "no usable GPU"; return; }
  sanitizer=$(find_sanitizer) || sanitizer=
  [ -n "$sanitizer" ] || { no_gpu "$tool" "no compute-sanitizer"; return; }
  local flags=(--tool "$tool" --target-processes application-only --print-limit 100000)
  # Kernels are looked for in one image after the other, so lookups fail by design; the
  # program checks what every call returns itself.
  [ "$tool" != memcheck ] || flags+=(--report-api-errors no)
  # initcheck also reports copies to the host of rows that no token lives in; what
  # counts is what kernels read.
  [ "$tool" = initcheck ] || flags+=(--error-exitcode 86)
  run_tests "$tool" env LLAMA_RS_PARITY=small "$sanitizer" "${flags[@]}" "$here/op_parity" -q
  local errors
  case "$tool" in
    initcheck) errors=$(grep -c 'Uninitialized __[a-z]*__ memory read' "$log" || true) ;;
    *) errors=$(sed -nE 's/.*(ERROR|RACECHECK) SUMMARY: ([0-9]+) .*/\2/p' "$log" | tail -n 1) ;;
  esac
  # Without a summary the tool never ran.
  [ -n "$errors" ] || errors=1
  if [ "$errors" != 0 ] && [ "${failed[$tool]}" = 0 ]; then
    failed[$tool]=$errors
    printf '\n%s: %s errors, all in %s:\n' "$tool" "$errors" "$log" >&2
    grep -E -A 6 '^========= (Invalid|Uninit|Error|Warning|Program hit|Race)' "$log" | head -n 40 >&2 || true
  fi
}

part_memcheck() { sanitize memcheck; }
part_racecheck() { sanitize racecheck; }
part_initcheck() { sanitize initcheck; }

table() {
  printf '\n%-12s %7s %7s %8s %8s\n' name passed failed skipped seconds
  local part bad=0
  for part in "${parts[@]}"; do
    [ -n "${passed[$part]:-}" ] || continue
    printf '%-12s %7d %7d %8d %8d\n' "$part" "${passed[$part]}" "${failed[$part]}" \
      "${skipped[$part]}" "${seconds[$part]}"
    [ "${failed[$part]}" = 0 ] || bad=1
  done
  [ "$gpu" = 1 ] || printf 'No usable GPU: what needs one counts as %s.\n' \
    "$([ "$require" = 1 ] && printf failed || printf skipped)"
  return "$bad"
}

collecting=0 require=0 only='' models='' here=''
while [ $# -gt 0 ]; do
  case "$1" in
    --collect) collecting=1 ;;
    --require) require=1 ;;
    --only | --models)
      [ $# -ge 2 ] || bad_usage "$1 wants a value"
      if [ "$1" = --only ]; then only=$2; else models=$2; fi
      shift
      ;;
    -h | --help) printf '%s\n' "$usage"; exit 0 ;;
    -*) bad_usage "unknown flag $1" ;;
    *)
      [ -z "$here" ] || bad_usage "more than one folder"
      here=$1
      ;;
  esac
  shift
done
[ -n "$here" ] || bad_usage "no folder"
if [ "$collecting" = 1 ]; then
  collect "$here"
  exit 0
fi
[ -x "$here/op_parity" ] || fail "$here holds no tests; fill it with --collect"
here=$(cd "$here" && pwd)
[ -n "$only" ] || only=$(IFS=,; printf '%s' "${parts[*]}")
IFS=, read -r -a chosen <<<"$only"
for part in "${chosen[@]}"; do
  [[ " ${parts[*]} " == *" $part "* ]] || bad_usage "no part $part"
done
[ -z "$models" ] || [ -d "$models" ] || bad_usage "$models is no folder"
models=${models:-$here/models}
logs=$(mktemp -d "${TMPDIR:-/tmp}/gpu-test.XXXXXX")
export LLAMA_RS_TEST_DATA=$here/data LLAMA_RS_TEST_MODELS=$models LLAMA_RS_REQUIRE_CUDA=$require
gpu=0
"$here/llama-rs" devices --json 2>/dev/null | grep -q '"reason":null}}' && gpu=1
for part in "${chosen[@]}"; do
  start=$SECONDS
  "part_$part"
  seconds[$part]=$((SECONDS - start))
done
table
