"""Turns written by hand, many ways to ask a line: smalltalk.txt, facts.txt and everyday.txt."""

import re
from pathlib import Path

import myself
import prompts

FILES = ("smalltalk.txt", "facts.txt")
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
