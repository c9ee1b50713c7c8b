#!/usr/bin/env bash
# Makes the toy models that ship with llama-rs: a llama and a Mamba-2, from text that
# SmolLM2-135M-Instruct writes and turns written by hand. Needs a GPU (an H200 was used),
# python3, and
#   pip install torch==2.11.0 gguf==0.19.0 tokenizers==0.23.3 numpy
# The seeds are fixed; another GPU or other versions give other rounding and so other text.
# Exit codes: 0 both models are in DIR, 1 a step failed, 2 usage.
set -euo pipefail

usage='usage: scripts/toy/make.sh SMOLLM2.gguf DIR
  SMOLLM2.gguf  what scripts/get-model.sh smollm2 fetches
  DIR           gets toy-llama.gguf and toy-mamba2.gguf, and what lies between'

[ $# -eq 2 ] && [ -f "$1" ] || { printf '%s\n' "$usage" >&2; exit 2; }
smollm2=$(realpath "$1")
mkdir -p "$2"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$2"

python3 "$here/prompts.py" >prompts.jsonl
python3 "$here/generate.py" prompts.jsonl "$smollm2" >samples.jsonl
python3 "$here/clean.py" samples.jsonl >turns.jsonl
python3 "$here/vocabulary.py" turns.jsonl vocabulary.json
for net in llama mamba2; do
  python3 "$here/train.py" "$net" turns.jsonl vocabulary.json "$net.pt"
  python3 "$here/export.py" "$net.pt" vocabulary.json "toy-$net.gguf"
done
