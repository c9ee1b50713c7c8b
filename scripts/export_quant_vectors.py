#!/usr/bin/env python3
"""Exports dequantization vectors from the `gguf` package to tests/data/quant.

    pip install gguf numpy
    python scripts/export_quant_vectors.py

One file a type, NAME.bin: all blocks as in a GGUF file, then their values as
little-endian f32, as `gguf.quants.dequantize` gives them. The number of blocks
follows from the file's length. The same seed always gives the same bytes.
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "quant"

# Byte offsets of the f16 scale fields of a block.
F16_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0],
}

# Zeros, ones, smallest and largest subnormal, smallest normal, largest,
# infinities, NaN; both signs.
F16_EDGES = [
    0x0000, 0x8000, 0x3C00, 0xBC00, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400,
    0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00,
]
# MXFP4 exponents: both subnormal scales, the first normal one, one, the top.
E8M0_EDGES = [0, 1, 2, 3, 126, 127, 128, 253, 254, 255]


def fields_of_edges(rng, name, size):
    """One block for each edge value in each scale field; the rest random,
    all zero bits or all one bits in turn."""
    blocks = []
    fills = [lambda: rng.integers(0, 256, size), lambda: np.zeros(size), lambda: np.full(size, 255)]
    edges = E8M0_EDGES if name == "MXFP4" else F16_EDGES
    for i, edge in enumerate(edges):
        for field in [0] if name == "MXFP4" else F16_FIELDS[name]:
            block = fills[i % 3]().astype(np.uint8)
            if name == "MXFP4":
                block[0] = edge
            else:
                for other in F16_FIELDS[name]:
                    block[other:other + 2] = scale(rng)
                block[field:field + 2] = np.array([edge], dtype="<u2").view(np.uint8)
            blocks.append(block)
    return blocks


def scale(rng):
    """A scale as files have them: either sign, 2^-14 to 1, as f16 bytes."""
    value = rng.choice([-1, 1]) * np.exp2(rng.uniform(-14, 0))
    return np.array([value], dtype="<f2").view(np.uint8)


def quantized(rng, name, length, size):
    """Edge blocks, then random blocks with sane scales."""
    blocks = fields_of_edges(rng, name, size)
    for _ in range(8 if length == 256 else 40):
        block = rng.integers(0, 256, size).astype(np.uint8)
        for field in F16_FIELDS.get(name, []):
            block[field:field + 2] = scale(rng)
        if name == "MXFP4":
            block[0] = rng.integers(112, 132)
        blocks.append(block)
    return np.stack(blocks)


def floats(rng, size):
    """Random bit patterns, and the edges of each f16 or bf16 exponent."""
    if size == 4:
        return rng.integers(0, 256, (256, 4)).astype(np.uint8)
    edges = [(e << 8) + low for e in range(256) for low in (0, 1, 0xFF)]
    words = np.concatenate([edges, rng.integers(0, 65536, 512)]).astype("<u2")
    return words.view(np.uint8).reshape(-1, 2)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    names = ["F32", "F16", "BF16", *F16_FIELDS, "MXFP4"]
    for seed, name in enumerate(names):
        qtype = GGMLQuantizationType[name]
        length, size = GGML_QUANT_SIZES[qtype]
        rng = np.random.default_rng(seed)
        blocks = floats(rng, size) if length == 1 else quantized(rng, name, length, size)
        with np.errstate(all="ignore"):
            values = dequantize(blocks, qtype)
        data = blocks.tobytes() + np.ascontiguousarray(values).astype("<f4").tobytes()
        (OUT / f"{name}.bin").write_bytes(data)
        print(f"{name}: {len(blocks)} blocks, {len(data)} bytes")


if __name__ == "__main__":
    main()
