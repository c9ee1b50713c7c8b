"""The two networks, as llama-rs evaluates them: a llama and a Mamba-2."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

EPS, ROPE_BASE, CHUNK = 1e-5, 10000.0, 64
DROPOUT = 0.1  # of what a block adds


def as_q4_0(w):
    """`w` as it is after GGUF's Q4_0: 32 values of a row share d, 15 steps of it."""
    blocks = w.detach().float().unflatten(-1, (-1, 32))
    most = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    d = (most / -8).half().float()
    inverse = torch.where(most == 0, 0, -8 / most)
    steps = (blocks * inverse + 8.5).floor().clamp(0, 15) - 8
    return (steps * d).flatten(-2)


def as_q8_0(w):
    """`w` as it is after Q8_0."""
    blocks = w.detach().float().unflatten(-1, (-1, 32))
    most = blocks.abs().amax(-1, keepdim=True)
    d = (most / 127).half().float()
    steps = torch.where(most == 0, 0, blocks * 127 / most).round()
    return (steps * d).flatten(-2)


class Quantizable:
    """Set `quantize` to train on the weights that the file will have."""

    quantize = False


class Linear(nn.Module):
    def __init__(self, n_in, n_out, scale=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * scale * n_in**-0.5)

    def forward(self, x):
        w = self.weight
        if Quantizable.quantize:
            w = w + (as_q4_0(w) - w.detach())  # gradients pass straight through
        return F.linear(x, w)


class Embedding(nn.Module):
    """Tokens in, and out again."""

    def __init__(self, n_vocab, n_embd):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_vocab, n_embd) * 0.02)

    def seen(self):
        w = self.weight
        return w + (as_q8_0(w) - w.detach()) if Quantizable.quantize else w


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), EPS).to(x.dtype)


@dataclass
class LlamaShape:
    n_vocab: int = 4096
    n_layer: int = 7
    n_embd: int = 384
    n_head: int = 6
    n_kv: int = 2
    n_ff: int = 960
    n_ctx: int = 512


class LlamaLayer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, hd = s, s.n_embd // s.n_head
        self.dropout = nn.Dropout(DROPOUT)
        small = (2 * s.n_layer) ** -0.5
        self.attn_norm, self.ffn_norm = Norm(s.n_embd), Norm(s.n_embd)
        self.attn_q, self.attn_k = Linear(s.n_embd, s.n_embd), Linear(s.n_embd, s.n_kv * hd)
        self.attn_v, self.attn_output = Linear(s.n_embd, s.n_kv * hd), Linear(s.n_embd, s.n_embd, small)
        self.ffn_gate, self.ffn_up = Linear(s.n_embd, s.n_ff), Linear(s.n_embd, s.n_ff)
        self.ffn_down = Linear(s.n_ff, s.n_embd, small)

    def forward(self, x, rope):
        b, t, _ = x.shape
        h = self.attn_norm(x)
        heads = lambda y, n: y.view(b, t, n, -1).transpose(1, 2)
        q, k = rope(heads(self.attn_q(h), self.s.n_head)), rope(heads(self.attn_k(h), self.s.n_kv))
        v = heads(self.attn_v(h), self.s.n_kv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.dropout(self.attn_output(y.transpose(1, 2).reshape(b, t, -1)))
        h = self.ffn_norm(x)
        return x + self.dropout(self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h)))


class Llama(nn.Module):
    def __init__(self, s=LlamaShape()):
        super().__init__()
        self.s = s
        self.token_embd, self.output_norm = Embedding(s.n_vocab, s.n_embd), Norm(s.n_embd)
        self.blk = nn.ModuleList(LlamaLayer(s) for _ in range(s.n_layer))

    def forward(self, ids):
        hd = self.s.n_embd // self.s.n_head
        inverse = ROPE_BASE ** (-torch.arange(0, hd, 2, device=ids.device).float() / hd)
        angles = torch.outer(torch.arange(ids.shape[1], device=ids.device).float(), inverse)
        cos, sin = angles.cos(), angles.sin()

        def rope(x):  # neighbours turn together
            a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)

        weight = self.token_embd.seen()
        x = F.embedding(ids, weight).to(torch.bfloat16 if ids.is_cuda else torch.float32)
        for layer in self.blk:
            x = layer(x, rope)
        return F.linear(self.output_norm(x), weight)


@dataclass
class Mamba2Shape:
    n_vocab: int = 4096
    n_layer: int = 11
    n_embd: int = 320
    n_head: int = 10
    head_dim: int = 64
    d_state: int = 64
    d_conv: int = 4
    n_ctx: int = 512

    @property
    def d_inner(self):
        return self.n_head * self.head_dim

    @property
    def n_channels(self):
        return self.d_inner + 2 * self.d_state


def ssd(x, dt, a, b, c):
    """The scan of Mamba-2 in chunks (arXiv 2405.21060, section 6): x [batch, t, head, p],
    dt [batch, t, head], a [head], b and c [batch, t, n]; t is a multiple of CHUNK."""
    cut = lambda v: v.unflatten(1, (-1, CHUNK))
    x, dt, b, c = cut(x * dt.unsqueeze(-1)), cut(dt), cut(b), cut(c)
    log = (dt * a).cumsum(2)  # [batch, chunk, t, head]
    among = log.unsqueeze(3) - log.unsqueeze(2)
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril()[:, :, None]
    mix = torch.einsum("zctn,zcsn->zcts", c, b).unsqueeze(-1) * among.masked_fill(~seen, -torch.inf).exp()
    y = torch.einsum("zctsh,zcshp->zcthp", mix, x)
    adds = torch.einsum("zcsn,zcsh,zcshp->zchpn", b, (log[:, :, -1:] - log).exp(), x)
    keeps = log[:, :, -1].exp()
    state, begins = torch.zeros_like(adds[:, 0]), []
    for i in range(adds.shape[1]):
        begins.append(state)
        state = state * keeps[:, i, :, None, None] + adds[:, i]
    y = y + torch.einsum("zctn,zchpn,zcth->zcthp", c, torch.stack(begins, 1), log.exp())
    return y.flatten(1, 2)


class Mamba2Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.dropout = s, nn.Dropout(DROPOUT)
        self.attn_norm, self.ssm_norm = Norm(s.n_embd), Norm(s.d_inner)
        self.ssm_in = Linear(s.n_embd, s.d_inner + s.n_channels + s.n_head)
        self.ssm_out = Linear(s.d_inner, s.n_embd, s.n_layer**-0.5)
        self.conv = nn.Parameter(torch.randn(s.n_channels, s.d_conv) * s.d_conv**-0.5)
        self.conv_bias = nn.Parameter(torch.zeros(s.n_channels))
        steps = torch.exp(torch.linspace(-6.9, -2.3, s.n_head))  # from 0.001 to 0.1
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.a_log = nn.Parameter(torch.linspace(1, 16, s.n_head)[torch.randperm(s.n_head)].log())
        self.d = nn.Parameter(torch.ones(s.n_head))

    def forward(self, h):
        s, t = self.s, h.shape[1]
        z, xbc, dt = self.ssm_in(self.attn_norm(h)).float().split([s.d_inner, s.n_channels, s.n_head], -1)
        taps = F.pad(xbc.transpose(1, 2), (s.d_conv - 1, 0))
        xbc = F.silu(F.conv1d(taps, self.conv.unsqueeze(1), self.conv_bias, groups=s.n_channels)).transpose(1, 2)
        x, b, c = xbc.split([s.d_inner, s.d_state, s.d_state], -1)
        x = x.unflatten(-1, (s.n_head, s.head_dim))
        dt = F.softplus(dt + self.dt_bias)
        rest = -t % CHUNK
        full = lambda v: F.pad(v, [0, 0] * (v.dim() - 2) + [0, rest])
        y = ssd(full(x), full(dt), -self.a_log.exp(), full(b), full(c))[:, :t]
        y = (y + x * self.d[:, None]).flatten(-2) * F.silu(z)
        return h + self.dropout(self.ssm_out(self.ssm_norm(y).to(h.dtype)))


class Mamba2(nn.Module):
    def __init__(self, s=Mamba2Shape()):
        super().__init__()
        self.s = s
        self.token_embd, self.output_norm = Embedding(s.n_vocab, s.n_embd), Norm(s.n_embd)
        self.blk = nn.ModuleList(Mamba2Layer(s) for _ in range(s.n_layer))

    def forward(self, ids):
        weight = self.token_embd.seen()
        x = F.embedding(ids, weight).to(torch.bfloat16 if ids.is_cuda else torch.float32)
        for layer in self.blk:
            x = layer(x)
        return F.linear(self.output_norm(x), weight)


NETS = {"llama": Llama, "mamba2": Mamba2}
