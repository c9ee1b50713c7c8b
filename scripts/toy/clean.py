"""Keeps the good ones among SmolLM2's answers.

    python3 clean.py samples.jsonl > turns.jsonl

Writes {"kind", "text", "answer"}, the best answers to each question first. An answer is
plain English prose of whole sentences that says something about its subject and does not
go round in circles. Rare words are mostly made up, so answers with one are left out. Of
the answers to a question those are best that share most words with the others: what a
model says by chance it says seldom. Stories are best where they are likely and varied.
"""

import json
import re
import sys
from collections import Counter, defaultdict

KEPT = {"short": 6, "person": 3, "story": 4}  # answers to a question
MOST_SENTENCES = {"short": 3, "person": 5, "story": 12}
LEAST_WORDS = {"short": 4, "person": 12, "story": 40}
MOST_WORDS = {"short": 50, "person": 70, "story": 130}
LEAST_VARIED = 0.75  # share of a text's pairs of words that come once
LEAST_SCORE = -1.6  # mean log-probability of a token
VARIED_WEIGHT, SCORE_WEIGHT = 2.0, 0.05  # how much counts beside the score and the agreement
LEAST_QUESTIONS = 5  # in whose answers a word occurs

UNWANTED = re.compile(
    r"smollm|hugging ?face|\bAI\b|language model|assistant|\bsorry\b|i can't|i cannot|i'm not able|as a model"
    r"|i'm (happy|glad|ready|afraid|here|sorry|thrilled)|i am (happy|glad|ready)|i'd be|assist|furry|question|help you with"
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


def varied(words):
    """Share of the pairs of words that come once."""
    seen = Counter(zip(words, words[1:]))
    return sum(n for n in seen.values() if n == 1) / max(1, len(words) - 1)


def circles(words):
    """True when four words come again, or one word makes up much of the text."""
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    most = max(words.count(w) for w in set(words))
    again = len(set(grams)) < len(grams) - len(grams) // 40
    return again or most > 3 + len(words) // 9 or varied(words) < LEAST_VARIED


def cleaned(sample):
    """The answer as it is kept, or None."""
    kind, text = sample["kind"], plain(sample["answer"])
    if sample["score"] < LEAST_SCORE or not PROSE.fullmatch(text) or UNWANTED.search(text):
        return None
    if kind == "story" and not sample["ended"]:
        return None  # a story has an end
    parts, whole = sentences(text)
    if kind == "person":
        parts = [part for part in parts if not re.search(r"\?|\byou\b|\byour\b|welcome", part)]
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
    if not text[0].isupper() or text.count('"') % 2 or re.search(r"^\W*\d+[.)]|^[\w ]{1,20}:", text, re.MULTILINE):
        return None
    return text


def words_of(text):
    return re.findall(r"[a-z']+", text.lower())


def best(kind, text, answers, scores):
    """`answers` (not cut), the best first."""
    if kind == "story":
        return sorted(answers, key=lambda a: -scores[a] - VARIED_WEIGHT * varied(words_of(a)))
    asked = set(words_of(text))
    said = {a: {w for w in words_of(a) if len(w) > 3} - asked for a in scores}  # of all, also with rare words

    def agreement(answer):
        mine = said[answer]
        shared = [2 * len(mine & other) / (len(mine) + len(other)) for other in said.values() if mine or other]
        return sum(shared) / max(1, len(shared))

    return sorted(answers, key=lambda a: -agreement(a) - SCORE_WEIGHT * scores[a])


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
    kept, few = Counter(), min(LEAST_QUESTIONS, max(1, len(answers) // 200))
    for (kind, text), found in answers.items():
        common = [a for a in found if all(seen[word] >= few for word in words_of(a))]
        for answer in best(kind, text, common, found)[: KEPT[kind]]:
            json.dump({"kind": kind, "text": text, "answer": answer}, sys.stdout)
            print()
            kept[kind] += 1
    print(f"{dict(kept)} of {n} answers kept, to {len(answers)} questions", file=sys.stderr)


if __name__ == "__main__":
    main()
