"""SmolLM2-135M-Instruct from its GGUF file, in PyTorch, for many sequences at once."""

import torch
from gguf import GGUFReader, dequantize
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

ROPE_BASE_KEY, EPS_KEY = "llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"
BUCKET = 64  # cached tokens that a captured step looks at come in steps of this


class Weights:
    """The tensors of a file, dequantized, and its keys."""

    def __init__(self, path, device, dtype):
        reader = GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {}
        for t in reader.tensors:
            values = torch.from_numpy(dequantize(t.data, t.tensor_type).copy())
            shape = [int(n) for n in reversed(t.shape)]
            self.tensors[t.name] = values.reshape(shape).to(device, dtype)

    def __getitem__(self, name):
        return self.tensors[name]


def tokenizer_of(keys):
    """The file's tokenizer: byte-level BPE, digits one by one."""
    words = keys["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = keys["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([w for w, kind in zip(words, kinds) if kind == 3])
    return tokenizer


class SmolLM2:
    """Steps of one token for each of `batch` sequences; all are at the same position."""

    def __init__(self, path, batch, n_ctx, device="cuda", dtype=torch.bfloat16):
        w = Weights(path, device, dtype)
        k = w.keys
        self.tokenizer = tokenizer_of(k)
        self.n_layer, self.n_head = k["llama.block_count"], k["llama.attention.head_count"]
        self.n_kv, self.eps = k["llama.attention.head_count_kv"], k[EPS_KEY]
        self.n_embd = k["llama.embedding_length"]
        self.head_dim = self.n_embd // self.n_head
        self.eos = k["tokenizer.ggml.eos_token_id"]
        self.emb, self.norm = w["token_embd.weight"], w["output_norm.weight"]
        self.layers = []
        for il in range(self.n_layer):
            get = lambda name: w[f"blk.{il}.{name}.weight"]
            qkv = torch.cat([get("attn_q"), get("attn_k"), get("attn_v")])
            gate_up = torch.cat([get("ffn_gate"), get("ffn_up")])
            self.layers.append((get("attn_norm"), qkv, get("attn_output"), get("ffn_norm"), gate_up, get("ffn_down")))
        inverse = k[ROPE_BASE_KEY] ** (-torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim)
        angles = torch.outer(torch.arange(n_ctx, device=device).float(), inverse)
        self.cos, self.sin = angles.cos(), angles.sin()
        kv = [self.n_layer, batch, self.n_kv, n_ctx, self.head_dim]
        self.k, self.v = torch.zeros(kv, device=device, dtype=dtype), torch.zeros(kv, device=device, dtype=dtype)
        self.batch, self.n_ctx, self.device = batch, n_ctx, device
        self.ids = torch.zeros(batch, dtype=torch.long, device=device)
        self.pos = torch.zeros(1, dtype=torch.long, device=device)
        self.graphs = {}

    def rms(self, x, weight):
        return torch.nn.functional.rms_norm(x, [self.n_embd], weight, self.eps)

    def rope(self, x):
        # GGUF stores the rows of q and k so that neighbours turn together.
        pairs = x.float().unflatten(-1, (-1, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        cos, sin = self.cos[self.pos], self.sin[self.pos]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)

    def forward(self, n_seen):
        x = self.emb[self.ids]
        dead = torch.arange(n_seen, device=self.device) > self.pos
        for il, (attn_norm, qkv, out, ffn_norm, gate_up, down) in enumerate(self.layers):
            h = self.rms(x, attn_norm) @ qkv.T
            q, k, v = h.unflatten(-1, (-1, self.head_dim)).split([self.n_head, self.n_kv, self.n_kv], 1)
            self.k[il].index_copy_(2, self.pos, self.rope(k).unsqueeze(2))
            self.v[il].index_copy_(2, self.pos, v.unsqueeze(2))
            q = self.rope(q).unflatten(1, (self.n_kv, -1))
            scores = (q @ self.k[il, :, :, :n_seen].transpose(-1, -2)).float() * self.head_dim**-0.5
            probs = scores.masked_fill(dead, -torch.inf).softmax(-1).to(x.dtype)
            y = probs @ self.v[il, :, :, :n_seen]
            x = x + y.reshape(self.batch, -1) @ out.T
            gate, up = (self.rms(x, ffn_norm) @ gate_up.T).chunk(2, -1)
            x = x + (torch.nn.functional.silu(gate) * up) @ down.T
        return self.rms(x, self.norm) @ self.emb.T

    def step(self, pos):
        """Logits [batch, n_vocab] after `self.ids` at position `pos`."""
        self.pos.fill_(pos)
        n_seen = min((pos // BUCKET + 1) * BUCKET, self.n_ctx)
        if self.device != "cuda":
            return self.forward(n_seen)
        if n_seen not in self.graphs:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.forward(n_seen)  # what is made once is made outside of the graph
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self.forward(n_seen)
            self.graphs[n_seen] = (graph, logits)
        graph, logits = self.graphs[n_seen]
        graph.replay()
        return logits
