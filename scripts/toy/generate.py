"""Lets SmolLM2-135M-Instruct answer the questions, several times each.

    python3 generate.py prompts.jsonl SmolLM2-135M-Instruct.Q4_1.gguf > samples.jsonl

Writes the question's keys with {"answer", "score", "ended"}: the score is the mean
log-probability of the answer's tokens; an answer that was cut has not ended.
"""

import argparse
import json
import sys
import time

import torch

from smollm2 import SmolLM2

# As the model was trained with it; brevity is asked for in the question itself.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
ASK = {
    "short": "{} Answer in two sentences.",
    "person": "{} Introduce yourself and say what you like. Use simple words.",
    "story": "{} Use simple words and write one short paragraph.",
}
# How answers begin; every second story begins as it likes.
START = {"short": "", "person": "Hello, my name is {name} and I", "story": "Once upon a time, there"}
SAMPLES = {"short": 32, "person": 16, "story": 11}
MOST_NEW = {"short": 72, "person": 88, "story": 176}
SHARE_OF_TIME = {"short": 0.45, "person": 0.5, "story": 1.0}  # each ends by then, counted from the start
TEMPERATURE, TOP_P, TOP_K, SEED = 0.65, 0.92, 50, 1


def job(tokenizer, prompt, number):
    start = START[prompt["kind"]].format(**prompt) if prompt["kind"] != "story" or number % 2 == 0 else ""
    text = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{ASK[prompt['kind']].format(prompt['text'])}"
        f"<|im_end|>\n<|im_start|>assistant\n{start}"
    )
    return prompt, start, tokenizer.encode(text, add_special_tokens=False).ids


def sample(logits):
    """Ids [batch] and their log-probabilities."""
    top, ids = logits.float().topk(TOP_K)
    log_probs = top - logits.float().logsumexp(-1, keepdim=True)
    probs = (top / TEMPERATURE).softmax(-1)
    probs = probs.masked_fill(probs.cumsum(-1) - probs > TOP_P, 0)
    chosen = torch.multinomial(probs, 1)
    return ids.gather(1, chosen).squeeze(1), log_probs.gather(1, chosen).squeeze(1)


def answer_all(model, jobs, most_new):
    """Prompt, answer, mean log-probability, and whether it ended, of up to `batch` jobs."""
    n, device = len(jobs), model.device
    lengths = torch.tensor([len(ids) for _, _, ids in jobs] + [1] * (model.batch - n), device=device)
    n_steps = int(lengths.max()) + most_new
    given = torch.zeros(model.batch, n_steps, dtype=torch.long)
    for row, (_, _, ids) in enumerate(jobs):
        given[row, : len(ids)] = torch.tensor(ids)
    tokens, scores = given.to(device), torch.zeros(model.batch, n_steps, device=device)
    done = torch.arange(model.batch, device=device) >= n
    end = torch.full_like(lengths, n_steps)
    for pos in range(n_steps - 1):
        model.ids.copy_(tokens[:, pos])
        logits = model.step(pos)
        if pos + 1 < int(lengths[:n].min()):
            continue
        ids, log_probs = sample(logits)
        fresh = (lengths <= pos + 1) & ~done
        tokens[:, pos + 1] = torch.where(fresh, ids, tokens[:, pos + 1])
        scores[:, pos + 1] = torch.where(fresh, log_probs, 0)
        ends = fresh & ((ids == model.eos) | (pos + 1 >= lengths + most_new - 1))
        end = torch.where(ends, pos + 1, end)
        done |= ends
        if pos % 16 == 0 and bool(done.all()):
            break
    tokens, sums, end, lengths = tokens.tolist(), scores.cumsum(1).tolist(), end.tolist(), lengths.tolist()
    for row, (prompt, start, _) in enumerate(jobs):
        if end[row] == lengths[row] or end[row] == n_steps:
            continue
        text = start + model.tokenizer.decode(tokens[row][lengths[row] : end[row]])
        score = sums[row][end[row]] / (end[row] + 1 - lengths[row])
        yield prompt, text, score, tokens[row][end[row]] == model.eos


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--limit", type=int, help="only every so many-th prompt")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    began, n_ctx = time.time(), 128 + max(MOST_NEW.values())
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    model = SmolLM2(args.model, args.batch, n_ctx, args.device, dtype)
    prompts = [json.loads(line) for line in open(args.prompts)][:: args.limit or 1]
    written = asked = 0
    with torch.inference_mode():
        for kind in SHARE_OF_TIME:
            jobs = [job(model.tokenizer, p, i) for p in prompts if p["kind"] == kind for i in range(SAMPLES[kind])]
            # Alike in length, so that few steps are spent on waiting.
            jobs.sort(key=lambda j: len(j[2]))
            jobs = [j for j in jobs if len(j[2]) + MOST_NEW[kind] <= n_ctx]
            for first in range(0, len(jobs), args.batch):
                if time.time() - began > args.seconds * SHARE_OF_TIME[kind]:
                    break
                some = jobs[first : first + args.batch]
                for prompt, text, score, ended in answer_all(model, some, MOST_NEW[kind]):
                    json.dump({**prompt, "answer": text, "score": round(score, 4), "ended": ended}, sys.stdout)
                    print()
                    written += ended
                asked += len(some)
                print(f"{kind}: {first + len(some)} of {len(jobs)}, {written} of {asked} ended, "
                      f"{time.time() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
