"""Writes a trained model as GGUF: matrices in Q4_0, the embedding in Q8_0.

    python3 export.py llama.pt vocabulary.json toy-llama.gguf
"""

import json
import sys

import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter
from gguf.quants import quantize

from nets import EPS, ROPE_BASE

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL, NORMAL = 3, 1


def add_vocabulary(w, path):
    saved = json.load(open(path))
    words = sorted(saved["model"]["vocab"], key=saved["model"]["vocab"].get)
    special = {t["content"] for t in saved["added_tokens"]}
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(words)
    w.add_token_types([CONTROL if word in special else NORMAL for word in words])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in saved["model"]["merges"]])
    w.add_eos_token_id(words.index("<|im_end|>"))
    w.add_eot_token_id(words.index("<|im_end|>"))
    w.add_pad_token_id(words.index("<|endoftext|>"))
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)


def add_keys(w, net, s):
    w.add_name({"llama": "Toy", "mamba2": "Toy Mamba-2"}[net])
    w.add_license("mit")
    w.add_description("A toy that comes with llama-rs: short English chats and stories. Do not trust its facts.")
    w.add_float32("general.sampling.temp", 0.2)
    w.add_int32("general.sampling.top_k", 20)
    w.add_vocab_size(s["n_vocab"])
    w.add_context_length(s["n_ctx"])
    w.add_embedding_length(s["n_embd"])
    w.add_block_count(s["n_layer"])
    w.add_layer_norm_rms_eps(EPS)
    if net == "llama":
        w.add_head_count(s["n_head"])
        w.add_head_count_kv(s["n_kv"])
        w.add_feed_forward_length(s["n_ff"])
        w.add_rope_dimension_count(s["n_embd"] // s["n_head"])
        w.add_rope_freq_base(ROPE_BASE)
    else:
        w.add_feed_forward_length(0)
        w.add_head_count(0)
        w.add_ssm_conv_kernel(s["d_conv"])
        w.add_ssm_inner_size(s["n_head"] * s["head_dim"])
        w.add_ssm_state_size(s["d_state"])
        w.add_ssm_time_step_rank(s["n_head"])
        w.add_ssm_group_count(1)


def tensors(weights):
    """Name, values and type of each tensor."""
    for name, v in weights.items():
        v = v.float().cpu().numpy()
        *place, last = name.split(".")
        if name == "token_embd.weight":
            yield name, v, T.Q8_0
        elif last == "weight":
            yield name, v, T.Q4_0 if v.ndim == 2 else T.F32
        else:
            layer = ".".join(place)
            file_name, v = {
                "conv": ("ssm_conv1d.weight", v),
                "conv_bias": ("ssm_conv1d.bias", v),
                "dt_bias": ("ssm_dt.bias", v),
                "a_log": ("ssm_a", -np.exp(v)[:, None]),
                "d": ("ssm_d", v[:, None]),
            }[last]
            yield f"{layer}.{file_name}", v, T.F32


def main():
    trained, vocabulary, out = sys.argv[1:]
    saved = torch.load(trained, map_location="cpu", weights_only=True)
    w = GGUFWriter(out, saved["net"])
    add_keys(w, saved["net"], saved["shape"])
    add_vocabulary(w, vocabulary)
    for name, values, kind in tensors(saved["weights"]):
        values = np.ascontiguousarray(values, dtype=np.float32)
        w.add_tensor(name, values if kind == T.F32 else quantize(values, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
