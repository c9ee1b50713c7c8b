#!/usr/bin/env python3
"""Writes tests/data/arch/nemotron_h_moe-Q8_0.{gguf,json}: a tiny model with random
weights and its exact logits.

    pip install gguf numpy
    python scripts/make_nemotron_h_moe.py

The logits come from the formulas below, in f64 on the dequantized weights; first they
are held against nemotron_h-dense-Q4_K_M.json, which another program made. The same seed
always gives the same bytes.
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "arch"
CHECKED, NAME, ARCH = "nemotron_h-dense-Q4_K_M", "nemotron_h_moe-Q8_0", "nemotron_h_moe"
SEED = 20260

N_VOCAB, N_EMBD, EPS = 128, 128, 1e-5
# One letter a layer: Mamba-2, experts, attention.
LAYERS = "MEAEME"
N_HEAD, N_HEAD_KV, HEAD_DIM = 4, 2, 32
D_INNER, D_STATE, D_CONV, N_SSM_HEAD, N_GROUP = 256, 64, 4, 8, 2
N_EXPERT, N_USED, N_FF, N_FF_SHARED, WEIGHTS_SCALE = 8, 2, 64, 96, 2.5
# Choices nearer than this could fall otherwise in f32.
LEAST_MARGIN = 1e-5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms_norm(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


class Model:
    """A file's keys and dequantized weights."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.arch = reader.fields["general.architecture"].contents()
        self.fields = reader.fields
        self.weights = {
            t.name: dequantize(t.data, t.tensor_type).astype(np.float64).reshape(t.shape[::-1])
            for t in reader.tensors
        }
        self.margin, self.moved = np.inf, 0

    def key(self, name, default=None):
        field = self.fields.get(f"{self.arch}.{name}")
        return default if field is None else field.contents()

    def mamba2(self, w, h):
        n = len(h)
        d_inner, d_state = self.key("ssm.inner_size"), self.key("ssm.state_size")
        n_head, n_group = self.key("ssm.time_step_rank"), self.key("ssm.group_count")
        d_conv, bc = self.key("ssm.conv_kernel"), n_group * d_state
        z, xbc, dt = np.split(h @ w("ssm_in.weight").T, [d_inner, 2 * d_inner + 2 * bc], axis=1)
        past = np.concatenate([np.zeros((d_conv - 1, xbc.shape[1])), xbc])
        taps = w("ssm_conv1d.weight")
        xbc = silu(w("ssm_conv1d.bias") + sum(past[j : j + n] * taps[:, j] for j in range(d_conv)))
        x, b, c = np.split(xbc, [d_inner, d_inner + bc], axis=1)
        x = x.reshape(n, n_head, -1)
        b, c = (np.repeat(v.reshape(n, n_group, -1), n_head // n_group, axis=1) for v in (b, c))
        dt = np.log1p(np.exp(dt + w("ssm_dt.bias")))
        a, d = w("ssm_a").reshape(-1), w("ssm_d").reshape(-1)
        state, y = np.zeros((n_head, x.shape[2], d_state)), np.empty_like(x)
        for t in range(n):
            decay = np.exp(dt[t] * a)[:, None, None]
            state = state * decay + (x[t] * dt[t][:, None])[:, :, None] * b[t][:, None, :]
            y[t] = np.einsum("hps,hs->hp", state, c[t]) + d[:, None] * x[t]
        y = (y.reshape(n, -1) * silu(z)).reshape(n, n_group, -1)
        y = rms_norm(y, self.key("attention.layer_norm_rms_epsilon")) * w("ssm_norm.weight")
        return y.reshape(n, -1) @ w("ssm_out.weight").T

    def attention(self, w, h, n_head_kv):
        n, n_head = len(h), self.key("attention.head_count")
        q = (h @ w("attn_q.weight").T).reshape(n, n_head, -1)
        k, v = ((h @ w(f"attn_{i}.weight").T).reshape(n, n_head_kv, -1) for i in "kv")
        k, v = (np.repeat(i, n_head // n_head_kv, axis=1) for i in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[2])
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=2, keepdims=True))
        scores /= scores.sum(axis=2, keepdims=True)
        return np.einsum("hqk,khd->qhd", scores, v).reshape(n, -1) @ w("attn_output.weight").T

    def experts(self, w, h):
        n_used = self.key("expert_used_count")
        scores = sigmoid(h @ w("ffn_gate_inp.weight").T)
        choice = scores + w("exp_probs_b.bias")
        order = np.argsort(-choice, axis=1, kind="stable")
        ranked = np.take_along_axis(choice, order, axis=1)
        self.margin = min(self.margin, np.min(ranked[:, n_used - 1] - ranked[:, n_used]))
        plain = np.argsort(-scores, axis=1, kind="stable")[:, :n_used]
        self.moved += np.sum(np.sort(plain) != np.sort(order[:, :n_used]))
        out = np.maximum(h @ w("ffn_up_shexp.weight").T, 0) ** 2 @ w("ffn_down_shexp.weight").T
        up, down = w("ffn_up_exps.weight"), w("ffn_down_exps.weight")
        for t, chosen in enumerate(order[:, :n_used]):
            weights = scores[t, chosen]
            weights = weights / weights.sum() * self.key("expert_weights_scale")
            for e, weight in zip(chosen, weights):
                out[t] += weight * (down[e] @ (np.maximum(up[e] @ h[t], 0) ** 2))
        return out

    def logits(self, tokens):
        eps = self.key("attention.layer_norm_rms_epsilon")
        x = self.weights["token_embd.weight"][tokens]
        for il in range(self.key("block_count")):
            w = lambda name: self.weights[f"blk.{il}.{name}"]
            h = rms_norm(x, eps) * w("attn_norm.weight")
            n_head_kv = self.key("attention.head_count_kv")[il]
            if f"blk.{il}.ssm_in.weight" in self.weights:
                x = x + self.mamba2(w, h)
            elif n_head_kv > 0:
                x = x + self.attention(w, h, n_head_kv)
            elif f"blk.{il}.ffn_gate_inp.weight" in self.weights:
                x = x + self.experts(w, h)
            else:
                x = x + np.maximum(h @ w("ffn_up.weight").T, 0) ** 2 @ w("ffn_down.weight").T
        x = rms_norm(x, eps) * self.weights["output_norm.weight"]
        return x @ self.weights["output.weight"].T


def write(path):
    rng = np.random.default_rng(SEED)
    g = GGUFWriter(path, ARCH)
    g.add_name("tiny nemotron_h_moe")
    g.add_tokenizer_model("no_vocab")
    g.add_vocab_size(N_VOCAB)
    g.add_context_length(512)
    g.add_embedding_length(N_EMBD)
    g.add_block_count(len(LAYERS))
    g.add_feed_forward_length([N_FF if kind == "E" else 0 for kind in LAYERS])
    g.add_head_count(N_HEAD)
    g.add_head_count_kv([N_HEAD_KV if kind == "A" else 0 for kind in LAYERS])
    g.add_key_length(HEAD_DIM)
    g.add_value_length(HEAD_DIM)
    g.add_layer_norm_rms_eps(EPS)
    g.add_ssm_inner_size(D_INNER)
    g.add_ssm_conv_kernel(D_CONV)
    g.add_ssm_state_size(D_STATE)
    g.add_ssm_time_step_rank(N_SSM_HEAD)
    g.add_ssm_group_count(N_GROUP)
    g.add_expert_count(N_EXPERT)
    g.add_expert_used_count(N_USED)
    g.add_expert_feed_forward_length(N_FF)
    g.add_expert_shared_feed_forward_length(N_FF_SHARED)
    g.add_expert_shared_count(1)
    g.add_expert_group_count(1)
    g.add_expert_group_used_count(1)
    g.add_expert_weights_norm(True)
    g.add_expert_weights_scale(WEIGHTS_SCALE)

    def vec(name, n, mean, std):
        g.add_tensor(name, np.float32(mean + std * rng.standard_normal(n)))

    def mat(name, *shape, dtype=T.Q8_0):
        # Rows of norm 1, so that products keep the size of what they multiply.
        values = np.float32(rng.standard_normal(shape) / np.sqrt(shape[-1]))
        if dtype == T.F32:
            g.add_tensor(name, values)
        else:
            g.add_tensor(name, quantize(values, dtype), raw_dtype=dtype)

    mat("token_embd.weight", N_VOCAB, N_EMBD)
    vec("output_norm.weight", N_EMBD, 1, 0.1)
    mat("output.weight", N_VOCAB, N_EMBD)
    for il, kind in enumerate(LAYERS):
        p = f"blk.{il}."
        vec(p + "attn_norm.weight", N_EMBD, 1, 0.1)
        if kind == "M":
            channels = D_INNER + 2 * N_GROUP * D_STATE
            mat(p + "ssm_in.weight", D_INNER + channels + N_SSM_HEAD, N_EMBD)
            mat(p + "ssm_conv1d.weight", channels, D_CONV, dtype=T.F32)
            vec(p + "ssm_conv1d.bias", channels, 0, 0.1)
            vec(p + "ssm_dt.bias", N_SSM_HEAD, -2, 1)
            g.add_tensor(p + "ssm_a", -np.float32(1 + 7 * rng.random((N_SSM_HEAD, 1))))
            vec(p + "ssm_d", (N_SSM_HEAD, 1), 1, 0.1)
            vec(p + "ssm_norm.weight", (N_GROUP, D_INNER // N_GROUP), 1, 0.1)
            mat(p + "ssm_out.weight", N_EMBD, D_INNER)
        elif kind == "A":
            mat(p + "attn_q.weight", N_HEAD * HEAD_DIM, N_EMBD)
            mat(p + "attn_k.weight", N_HEAD_KV * HEAD_DIM, N_EMBD)
            mat(p + "attn_v.weight", N_HEAD_KV * HEAD_DIM, N_EMBD)
            mat(p + "attn_output.weight", N_EMBD, N_HEAD * HEAD_DIM)
        else:
            mat(p + "ffn_gate_inp.weight", N_EXPERT, N_EMBD, dtype=T.F32)
            vec(p + "exp_probs_b.bias", N_EXPERT, 0, 0.2)
            mat(p + "ffn_up_exps.weight", N_EXPERT, N_FF, N_EMBD)
            mat(p + "ffn_down_exps.weight", N_EXPERT, N_EMBD, N_FF)
            mat(p + "ffn_up_shexp.weight", N_FF_SHARED, N_EMBD)
            mat(p + "ffn_down_shexp.weight", N_EMBD, N_FF_SHARED)
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def main():
    with open(DATA / f"{CHECKED}.json") as file:
        known = json.load(file)
    tokens, positions = known["tokens"], known["positions"]
    ours = Model(DATA / f"{CHECKED}.gguf").logits(tokens)[positions]
    theirs = np.array(known["logits"])
    nmse = np.sum((ours - theirs) ** 2) / np.sum(theirs**2)
    print(f"{CHECKED}: NMSE {nmse:.1e}")
    # They were computed in f32.
    assert nmse < 1e-9

    write(DATA / f"{NAME}.gguf")
    model = Model(DATA / f"{NAME}.gguf")
    logits = model.logits(tokens)[positions]
    print(f"{NAME}: margin {model.margin:.1e}, {model.moved} choices moved by the bias")
    assert model.margin > LEAST_MARGIN and model.moved > 0
    expected = {
        "model": f"{NAME}.gguf",
        "note": "logits after tokens[positions[i]], computed in f64 on the dequantized "
        "weights by scripts/make_nemotron_h_moe.py; no figures of a peer",
        "tokens": tokens,
        "n_vocab": N_VOCAB,
        "positions": positions,
        "logits": [[float(f"{x:.7g}") for x in row] for row in logits],
        "peer_nmse_median": None,
    }
    (DATA / f"{NAME}.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
