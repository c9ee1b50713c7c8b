"""Turns written by hand, many ways to ask a line: smalltalk.txt, facts.txt and everyday.txt."""

import re
from pathlib import Path

import myself
import prompts

FILES = ("smalltalk.txt", "facts.txt")
# Words that say nothing about the matter, before a question and after it, and what may stand before one that asks.
BEFORE = "okay|ok|hey|hi|so|well|hmm|oh|um|and|hello|please|now"
AFTER = "please|now|today|then|my friend|thanks|again|too|if you can|really"
BEFORE_ASKING = "can you tell me|do you know|tell me|I want to know|I wonder|please tell me|I have a question:|could you tell me"
SHARE_BEFORE, SHARE_AFTER, SHARE_SLIP = 0.12, 0.08, 0.05
ASKS = re.compile(r"(what|who|where|when|why|how|which|is|are|am|do|does|did|can|could|will|would|should|may|have you|has)\b")


def read():
    """(question, answers) of each question, but those that are held out."""
    for name in FILES:
        for line in (Path(__file__).parent / name).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                questions, answers = line.split(" => ")
                for question in prompts.split(questions):
                    if prompts.bare(question) not in prompts.held_out():
                        yield question, prompts.split(answers)
    yield from myself.everyday()


def written(question, rng):
    """The question as somebody may write it: with or without capitals and marks."""
    if rng.random() < 0.6:
        question = question[0].upper() + question[1:]
        question = re.sub(r"\bi\b", "I", question)
        if question[-1].isalnum():
            question += "?" if ASKS.match(question.lower()) else "."
    return question


def blurred(question, rng):
    """The question with such words around it, or a slip of the keys: the answer stays the same."""
    ending = question[-1] if question[-1] in ".!?" else ""
    body = question.rstrip(".!?")
    if len(body.split()) < 3:
        return question
    if rng.random() < SHARE_BEFORE:
        asks = re.match(r"(what|who|where|when|why|how)\b", body.lower())
        before = rng.choice((BEFORE_ASKING if asks and rng.random() < 0.5 else BEFORE).split("|"))
        first = body.split()[0]
        plain = first in ("I", "I'm") or first.isupper()
        body = before + rng.choice((" ", ", ")) + (body if plain else body[0].lower() + body[1:])
        if question[0].isupper():
            body = body[0].upper() + body[1:]
    if rng.random() < SHARE_AFTER:
        body += rng.choice((" ", ", ")) + rng.choice(AFTER.split("|"))
    if rng.random() < SHARE_SLIP:
        at = rng.randrange(1, len(body) - 2)
        if body[at : at + 2].isalpha():
            body = body[:at] + rng.choice((body[at + 1] + body[at], body[at], body[at] * 2 + body[at + 1])) + body[at + 2 :]
    return question if prompts.bare(body) in prompts.held_out() else body + ending
