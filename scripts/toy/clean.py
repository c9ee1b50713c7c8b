"""Keeps the good ones among SmolLM2's answers.

    python3 clean.py samples.jsonl > turns.jsonl

Writes {"kind", "text", "answer"}, the likeliest answers to each question first. An answer
is plain English prose of whole sentences that says something about its subject and does
not go round in circles. Rare words are mostly made up, so answers with one are left out.
"""

import json
import re
import sys
from collections import Counter, defaultdict

KEPT = {"short": 8, "story": 3}  # answers to a question
MOST_SENTENCES = {"short": 3, "story": 12}
LEAST_WORDS, MOST_WORDS = {"short": 4, "story": 40}, {"short": 60, "story": 130}
LEAST_SCORE = -1.6  # mean log-probability of a token
LEAST_QUESTIONS = 5  # in whose answers a word occurs

UNWANTED = re.compile(
    r"smollm|hugging ?face|\bAI\b|language model|assistant|\bsorry\b|i can't|i cannot|i'm not able|as a model"
    r"|trained|chatbot|http|www|@|\bhere (is|are)\b|sure[,!]|certainly|two sentences|simple words|paragraph"
    r"|suicid|kill|murder|blood|\bgun|\bdrug|\bsex|naked|\bdie[ds]?\b|\bdead\b|\bwar\b|terror|racis|nazi",
    re.IGNORECASE,
)
PROSE = re.compile(r"[A-Za-z0-9 ,.!?;:'\"()\n-]+")
SENTENCE = re.compile(r"[^.!?]+[.!?]+[\"')]*")
ABBREVIATION = re.compile(r"\b(Mr|Mrs|Ms|Dr|St|etc|e\.g|i\.e)\.$")


def plain(text):
    for old, new in (("’", "'"), ("‘", "'"), ("“", '"'), ("”", '"'), ("—", " - "), ("–", "-"), ("…", "..."), ("\u00a0", " ")):
        text = text.replace(old, new)
    return re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*", "\n", text)).strip()


def sentences(text):
    found, begin = [], 0
    for match in SENTENCE.finditer(text):
        if not ABBREVIATION.search(text[begin : match.end()]):
            found.append(text[begin : match.end()].strip())
            begin = match.end()
    return found, begin >= len(text.rstrip())


def circles(words):
    """True when four words come again, or one word makes up much of the text."""
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    most = max(words.count(w) for w in set(words))
    return len(set(grams)) < len(grams) - len(grams) // 40 or most > 3 + len(words) // 9


def cleaned(sample):
    """The answer as it is kept, or None."""
    kind, text = sample["kind"], plain(sample["answer"])
    if sample["score"] < LEAST_SCORE or not PROSE.fullmatch(text) or UNWANTED.search(text):
        return None
    if kind == "story" and not sample["ended"]:
        return None  # a story has an end
    parts, whole = sentences(text)
    if not parts or (kind == "story" and (not whole or len(parts) > MOST_SENTENCES[kind])):
        return None
    text = " ".join(parts[: MOST_SENTENCES[kind]])
    if kind == "story":
        text = plain(sample["answer"]).replace("\n", "\n\n")
    words = re.findall(r"[a-z0-9']+", text.lower())
    if not LEAST_WORDS[kind] <= len(words) <= MOST_WORDS[kind] or circles(words):
        return None
    if sample["must"] and not any(m.lower() in text.lower() for m in sample["must"]):
        return None
    if not text[0].isupper() or text.count('"') % 2 or re.search(r"^\W*\d+[.)]", text, re.MULTILINE):
        return None
    return text


def words_of(text):
    return re.findall(r"[a-z']+", text.lower())


def main():
    answers, n = defaultdict(dict), 0
    for line in open(sys.argv[1]):
        sample, n = json.loads(line), n + 1
        text = cleaned(sample)
        if text is not None:
            key = (sample["kind"], sample["text"])
            answers[key][text] = max(sample["score"], answers[key].get(text, -9))
    seen = Counter()
    for found in answers.values():
        seen.update({word for answer in found for word in words_of(answer)})
    kept, few = 0, min(LEAST_QUESTIONS, max(1, len(answers) // 200))
    for (kind, text), found in answers.items():
        common = [a for a in found if all(seen[word] >= few for word in words_of(a))]
        for answer in sorted(common, key=lambda a: -found[a])[: KEPT[kind]]:
            json.dump({"kind": kind, "text": text, "answer": answer}, sys.stdout)
            print()
            kept += 1
    print(f"{kept} of {n} answers kept, to {len(answers)} questions", file=sys.stderr)


if __name__ == "__main__":
    main()
