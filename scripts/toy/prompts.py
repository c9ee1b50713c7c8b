"""Writes the questions for SmolLM2, a JSON object a line: {"kind", "text", "must"}.

    python3 prompts.py > prompts.jsonl

`kind` is `short` (an answer of a few sentences), `story`, or `person` (somebody says who they are, read as a
plain text and never as an answer); an answer counts only if it contains one of the words `must`. None of HELD_OUT, with which the
models are tried, is among them.
"""

import json
import random
import re
import sys
from functools import cache

import myself
import topics

SEED = 1
N_STORIES = 12000

# Thirty everyday prompts the models are never trained on.
HELD_OUT = """Hello, who is there?|Tell me a story about a fox.|What is rain?|How are you feeling this morning?
    |What are you, exactly?|Tell me about dogs and cats.|What should I cook for my family tonight?
    |I am a little sad because it rains.|Write a story about a boat and a whale.|Why do we need friends?
    |How can I fall asleep faster?|What is a good way to start the day?|Give me a tip for learning the piano.
    |Tell me a story about a girl who finds a key.|What does a firefighter do all day?|I got a kitten today!
    |What can I bake with apples?|Why is the night dark?|Describe a beautiful garden.
    |How do I say thank you to my teacher?|Tell me something about elephants.|What is the best thing about winter?
    |My brother took my toy.|Is tea better than coffee?|Tell me a story with a happy ending.|What do bees do?
    |I want to plant tomatoes.|Where can I read a book in peace?|What is a friend?|Good night, sleep well!"""


def split(text):
    return [part.strip() for part in text.split("|") if part.strip()]


def plural(word):
    for one, many in (("mouse", "mice"), ("sheep", "sheep"), ("fish", "fish"), ("deer", "deer"), ("goose", "geese"),
                      ("wolf", "wolves"), ("fireman", "firemen"), ("postman", "postmen"), ("fisherman", "fishermen"),
                      ("knife", "knives"), ("scarf", "scarves"), ("leaf", "leaves"), ("tato", "tatoes"),
                      ("mato", "matoes"), ("moose", "moose"), ("bus", "buses"), ("class", "classes")):
        if word.endswith(one):
            return word[: len(word) - len(one)] + many
    if re.search(r"(s|sh|ch|x|z)$", word):
        return word + "es"
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + "s"


def article(word):
    return ("an " if word[0] in "aeiou" and not word.startswith("un") else "a ") + word


def stem(word):
    """What an answer about the word has in it in any case."""
    last = word.split()[-1].lower()
    return re.sub(r"(ing|ies|es|y|e|s)$", "", last) if len(last) > 4 else last


def bare(text):
    return re.sub(r"\W+", " ", text.lower()).strip()


@cache
def held_out():
    """HELD_OUT without capitals and marks."""
    found = {bare(text) for text in split(HELD_OUT)}
    assert len(found) == 30
    return found


def places(word, suffix=""):
    """What the places of a form become; see topics.QUESTIONS. In a sentence's first word a capital stands for it."""
    x, many = word.replace("_", " "), word not in topics.MASS | topics.ONLY_ONE
    general = plural(x) if many else "the " + x if word in topics.ONLY_ONE else x
    found = {"x": x, "a": article(x), "s": plural(x), "f": general,
             "is": "are" if many else "is", "does": "do" if many else "does"}
    found |= {name.capitalize(): value[0].upper() + value[1:] for name, value in found.items()}
    return {name + suffix: value for name, value in found.items()}


def fill(form, word="it", word2="it", **others):
    return form.format(**places(word), **places(word2, "2"), **others)


def questions():
    for kind, forms in topics.QUESTIONS.items():
        for word in topics.WORDS[kind].split():
            x = word.replace("_", " ")
            for form in split(forms):
                yield {"kind": "short", "text": fill(form, word), "must": [stem(x), plural(x).split()[-1][:5]]}


def story(rng):
    """A form of topics.STORIES and its words; a and b may be the same."""
    words = lambda kind: [w.replace("_", " ") for w in topics.WORDS[kind].split()]
    heroes = words("animal") * 2 + words("job") + ["boy", "girl", "grandmother", "little girl", "little boy",
                                                   "family", "robot", "dragon", "fairy", "snowman", "teddy bear"] * 4
    things = words("object") + words("food")[:40] + words("nature")[:40]
    a = rng.choice(heroes)
    b = rng.choice(heroes if rng.random() < 0.5 else things)
    return rng.choice(split(topics.STORIES)), {
        "a": article(a),
        "b": article(b),
        "place": article(rng.choice(words("place"))),
        "trait": rng.choice(topics.TRAITS).replace("_", " "),
    }


def stories(rng):
    seen = set()
    while len(seen) < N_STORIES:
        form, words = story(rng)
        text = form.format(**words)
        if words["a"] != words["b"] and text not in seen:
            seen.add(text)
            yield {"kind": "story", "text": text, "must": [stem(words["a"])]}


def persons(rng):
    words = topics.WORDS["job"].split() + ["boy", "girl", "student", "grandmother", "grandfather"] * 8
    for name in topics.NAMES.split():
        for activity in rng.sample(topics.WORDS["activity"].split(), 12):
            who, likes = article(rng.choice(words)), activity.replace("_", " ")
            text = f"Pretend that you are {who.replace('_', ' ')} called {name} who likes {likes}."
            yield {"kind": "person", "text": text, "must": [name], "name": name}


def main():
    assert not held_out() & {bare(question) for question, _ in [*myself.turns(), *myself.everyday()]}
    rng = random.Random(SEED)
    for prompt in [*questions(), *persons(rng), *stories(rng)]:
        if bare(prompt["text"]) not in held_out():
            json.dump(prompt, sys.stdout)
            print()


if __name__ == "__main__":
    main()
