"""Turns made from patterns.txt: written by hand, with words left open."""

from pathlib import Path

import prompts
import topics


def read():
    """(kind, questions, answers) of each line."""
    kind = None
    for line in (Path(__file__).parent / "patterns.txt").read_text().splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif not line.startswith("#"):
            questions, answers = line.split(" => ")
            yield kind, prompts.split(questions), prompts.split(answers)


class Patterns:
    """Endless random turns, none of them held out."""

    def __init__(self, rng):
        self.rng, self.lines = rng, list(read())
        # A line counts by its questions.
        self.weights = [len(questions) for _, questions, _ in self.lines]

    def turn(self):
        """(question, answer)."""
        while True:
            kind, questions, answers = self.rng.choices(self.lines, self.weights)[0]
            words = self.words(kind)
            question = prompts.fill(self.rng.choice(questions), **words)
            if prompts.bare(question) not in prompts.held_out():
                return question, prompts.fill(self.rng.choice(answers), **words)

    def words(self, kind):
        drawn = {name: self.rng.choice(words.split()).replace("_", " ") for name, words in topics.OTHERS.items()}
        for name in ("idea", "food", "nature", "animal"):
            drawn[name] = prompts.places(self.rng.choice(topics.WORDS[name].split()))["f"]
        drawn["Nature"] = drawn["nature"][0].upper() + drawn["nature"][1:]
        if kind in topics.WORDS:
            known = topics.WORDS[kind].split() + (topics.MORE_OBJECTS.split() if kind == "object" else [])
            drawn["word"], drawn["word2"] = self.rng.sample(known, 2)
        return drawn
