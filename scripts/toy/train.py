"""Trains one of the two models.

    python3 train.py llama turns.jsonl vocabulary.json llama.pt

Conversations of several turns and plain texts are laid end to end; only what the model
is to write counts in the loss. The last third trains on weights rounded as in the file.
"held back" is the loss on questions of SmolLM2's that are not trained on.
"""

import argparse
import json
import math
import random
import time
from functools import lru_cache

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

import lines
import myself
from nets import NETS, Quantizable
from patterns import Patterns
from tales import Tales

SEED, LENGTH, BATCH = 1, 512, 64
STEPS = {"llama": 6000, "mamba2": 2000}
RATE, WARM_UP, DECAY = 2e-3, 100, 0.1
QUANTIZED_FROM = 0.67  # of the steps
HELD_BACK = 0.02  # of the questions, to measure on
KINDS = ("short", "person", "story")  # of SmolLM2's answers
# Shares of turns by where they come from: about the model, other turns written by hand, such with words left
# open, stories by hand, and SmolLM2's stories and answers.
SHARES = {"self": 0.06, "line": 0.46, "pattern": 0.12, "tale": 0.18, "story": 0.04, "short": 0.14}
PLAIN = 0.25  # share of texts that are no conversation
PLAIN_SHARES = {"tale": 0.4, "story": 0.15, "person": 0.3, "short": 0.05, "line": 0.1}
WORKERS = 4
N_PATTERNS, N_TALES = 60000, 40000  # drawn once, so that each is tokenized once
NO_COMMA = 0.5  # of "Hello, my name is"
SLOPPY = 0.15  # of questions have no capitals; as many no end; as many are shortened
SHORT_FORMS = (("I am ", "I'm "), ("What is ", "What's "), ("do not", "don't"), ("cannot", "can't"), ("does not", "doesn't"),
               ("That is", "That's"), ("Who is", "Who's"), ("it is", "it's"), ("It is", "It's"), ("I have", "I've"))


class Data:
    """Endless random conversations as token ids, and which of them count."""

    def __init__(self, turns, tokenizer, seed, shares, plain_shares):
        self.rng, self.shares, self.plain_shares = random.Random(seed), shares, plain_shares
        self.end, self.im_start, self.im_end = (tokenizer.token_to_id(t) for t in
                                                ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
        self.ids = ids = lru_cache(maxsize=None)(lambda text: tokenizer.encode(text).ids)
        self.user, self.assistant, self.line = ids("user\n"), ids("assistant\n"), ids("\n")
        self.said = {kind: [(t["text"], t["answer"]) for t in turns if t["kind"] == kind] for kind in KINDS}
        self.by_hand = {"self": list(myself.turns()), "line": list(lines.read())}
        patterns, tales = Patterns(self.rng), Tales(self.rng)
        self.said |= {"pattern": [patterns.turn() for _ in range(N_PATTERNS)], "tale": [tales.turn() for _ in range(N_TALES)]}
        self.left = ([], [])

    def drawn(self, shares):
        """A question and its answer."""
        kind = self.rng.choices(list(shares), list(shares.values()))[0]
        if kind in self.by_hand:
            question, answers = self.rng.choice(self.by_hand[kind])
            return lines.written(question, self.rng), self.rng.choice(answers)
        return self.rng.choice(self.said[kind])

    def turn(self):
        question, answer = self.drawn(self.shares)
        if self.rng.random() < SLOPPY:
            for long, short in SHORT_FORMS:
                question = question.replace(long, short)
        if self.rng.random() < SLOPPY:
            question = question.lower()
        if self.rng.random() < SLOPPY:
            question = question.rstrip(".!?")
        question = lines.blurred(question, self.rng)
        return self.ids(question), self.ids(answer)

    def text(self):
        """Ids and 1 for each that counts."""
        if self.rng.random() < PLAIN:
            _, answer = self.drawn(self.plain_shares)
            if self.rng.random() < NO_COMMA:
                answer = answer.replace("Hello, my name", "Hello my name")
            ids = self.ids(answer)
            return ids + [self.end], [1] * (len(ids) + 1)
        ids, counts = [], []
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            question, answer = self.turn()
            asked = [self.im_start, *self.user, *question, self.im_end, *self.line, self.im_start, *self.assistant]
            ids += asked + answer + [self.im_end, *self.line]
            counts += [0] * len(asked) + [1] * (len(answer) + 1) + [0] * len(self.line)
        return ids + [self.end], counts + [0]

    def batch(self, n):
        ids, counts = self.left
        while len(ids) < n * (LENGTH + 1):
            more, which = self.text()
            ids.extend(more)
            counts.extend(which)
        cut = n * (LENGTH + 1)
        self.left = (ids[cut:], counts[cut:])
        shape = (n, LENGTH + 1)
        return torch.tensor(ids[:cut]).view(shape), torch.tensor(counts[:cut], dtype=torch.float32).view(shape)


class Batches(torch.utils.data.IterableDataset):
    """Batches for processes of their own, so that the GPU does not wait for them."""

    def __init__(self, data, n):
        super().__init__()
        self.data, self.n = data, n

    def __iter__(self):
        # Each process draws other batches; they are taken in turn.
        self.data.rng.seed(SEED * WORKERS + torch.utils.data.get_worker_info().id)
        while True:
            yield self.data.batch(self.n)


def loss_of(net, ids, counts):
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
        logits = net(ids[:, :-1])
    logits = logits.float()
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    counts = counts[:, 1:].flatten()
    return (loss * counts).sum() / counts.sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=NETS)
    parser.add_argument("turns")
    parser.add_argument("vocabulary")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, help="another number than is right for the net")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    steps = args.steps or STEPS[args.net]
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(args.vocabulary)
    turns = [json.loads(line) for line in open(args.turns)]
    questions = sorted({t["text"] for t in turns})
    test = set(random.Random(SEED).sample(questions, int(len(questions) * HELD_BACK)))
    data = Data([t for t in turns if t["text"] not in test], tokenizer, SEED, SHARES, PLAIN_SHARES)
    of_smollm2 = {kind: share for kind, share in SHARES.items() if kind in KINDS}
    held = Data([t for t in turns if t["text"] in test], tokenizer, SEED + 1, of_smollm2, of_smollm2)
    net = NETS[args.net]().to(args.device)
    matrices = [p for p in net.parameters() if p.dim() == 2]
    others = [p for p in net.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=RATE, betas=(0.9, 0.95), fused=args.device == "cuda",
    )
    print(f"{sum(p.numel() for p in net.parameters()) / 1e6:.2f} million parameters, {len(turns)} turns")
    began, tests = time.time(), [held.batch(args.batch) for _ in range(4)]
    to_device = lambda pair: [t.to(args.device) for t in pair]
    loader = torch.utils.data.DataLoader(Batches(data, args.batch), batch_size=None, num_workers=WORKERS, prefetch_factor=8)
    batches = iter(loader)
    for step in range(steps):
        done = step / steps
        rate = RATE * min(1, (step + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        Quantizable.quantize = done >= QUANTIZED_FROM
        loss = loss_of(net, *to_device(next(batches)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % (steps // 40 or 1) == 0 or step == steps - 1:
            net.eval()
            with torch.no_grad():
                test = sum(float(loss_of(net, *to_device(t))) for t in tests) / len(tests)
            net.train()
            print(f"step {step} of {steps}: loss {loss.item():.3f}, held back {test:.3f}, {time.time() - began:.0f} s", flush=True)
    torch.save({"net": args.net, "shape": vars(net.s), "weights": net.state_dict()}, args.out)


if __name__ == "__main__":
    main()
