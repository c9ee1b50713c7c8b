"""A byte-level BPE vocabulary of the turns.

    python3 vocabulary.py turns.jsonl vocabulary.json
"""

import json
import random
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import lines
import myself
from patterns import Patterns
from tales import Tales

N_VOCAB, N_DRAWN, SEED = 4096, 20000, 1
# <|endoftext|> ends a text, <|im_end|> a turn.
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def main():
    turns = [json.loads(line) for line in open(sys.argv[1])]
    tokenizer = Tokenizer(models.BPE())
    # GPT-2's pattern, which GGUF calls `gpt-2`.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )

    def texts():
        for turn in turns:
            yield turn["text"]
            yield turn["answer"]
        for question, answers in [*myself.turns(), *lines.read()]:
            yield from [question, *answers] * 20
        rng = random.Random(SEED)
        patterns, tales = Patterns(rng), Tales(rng)
        for i in range(N_DRAWN):
            yield from patterns.turn() if i % 2 else tales.turn()
        yield from ["user\n", "assistant\n", "system\n"] * 1000

    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.save(sys.argv[2])
    n = sum(len(tokenizer.encode(t).ids) for t in list(texts())[:2000])
    print(f"{tokenizer.get_vocab_size()} tokens, {sum(map(len, list(texts())[:2000])) / n:.2f} characters each", file=sys.stderr)


if __name__ == "__main__":
    main()
