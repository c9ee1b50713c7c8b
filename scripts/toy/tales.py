"""Stories made from tales.txt: written by hand, with words left open."""

import re
from pathlib import Path

import prompts
import topics

GIRLS = set("Anna Clara Emma Grace Ida Kate Lily Mia Nina Olivia Rosa Sara Sofia Lucy Alice Ella Hannah Julia Laura Maria "
            "Mary Nora Ruth Susan Amy Jane".split())
# What a question has in it, by the words of its form.
NEEDS = (("{who}", "a who"), ("finds", "a finds b"), ("{trait}", "a trait"), ("{place}", "a place"), ("{b}", "a b"), ("", "a"))


def read():
    """Tales by what their question must have; a tale is a list of parts, a part of forms."""
    tales = {}
    for block in (Path(__file__).parent / "tales.txt").read_text().split("\n["):
        if not block.startswith("#"):
            needs, _, text = block.partition("]\n")
            tale = [prompts.split(line) for line in text.strip().splitlines()]
            # What a hero wants is not asked for.
            tales.setdefault("a" if needs == "a wants" else needs, []).append(tale)
    return tales


def clauses():
    """[past, present, and three sentences in several forms] of each clause."""
    for line in (Path(__file__).parent / "clauses.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            past, present, *sentences = (part.strip() for part in line.split("|"))
            assert len(sentences) == 3, line
            yield past, present, [[form.strip() for form in part.split(" / ")] for part in sentences]


# Questions that leave open what the story is about.
OPEN = """Tell me a story.|Tell me another story.|Tell me a bedtime story.|I want to hear a story.|Write a short story.
    |Can you tell me a story?|Please tell me a story.|Tell me a funny story.|Tell me something before I sleep.
    |Tell me a story about friendship.|Write a story that ends well.|Tell me a nice story.|Tell me a sad story.
    |One more story, please.|Make up a story.|Tell me a story about anything.|Do you know a good story?"""
SHARE_OPEN = 0.12
# More ways to ask, beside topics.STORIES.
ASK = """{story} {a}|{story} {a} please|please {story} {a}|can you {story} {a}?|I would like {noun} {a}.|{noun} {a}
    |do you know {noun} {a}?|let us hear {noun} {a}|could you {story} {a}, please?|{story} {a} for my {child}"""
STORY = """tell me a story about|write a story about|make up a story about|tell a short story about|tell me about the life of
    |tell me a tale about|write a little story about|invent a story about|tell me a bedtime story about|tell me a funny story about"""
NOUN = "a story about|one about|a short story about|the story of|a bedtime story about"
# Heroes that are nowhere else, and what a hero may be like.
HEROES = """old_man old_woman boat ship train car kite balloon teapot clock snowflake cloud tree flower star river bridge
    lighthouse lamp book pencil toy_train teddy_bear doll robot puppet wizard witch pirate princess prince king queen knight giant
    elf mermaid unicorn dinosaur dragon ghost monster baby farmer baker fisherman painter gardener sailor kitten puppy duckling
    goldfish mouse hedgehog penguin"""
LIKE = """little brave lost tiny old young small sleepy lonely kind lazy clever shy funny happy sad grumpy curious hungry
    friendly forgetful proud gentle cheerful nervous"""
SHARE_LIKE, SHARE_ASK, SHARE_WHO = 0.35, 0.4, 0.3
SHARE_PRESENT = 0.5  # of clauses


class Tales:
    """Endless random stories; no question is held out."""

    def __init__(self, rng):
        self.rng, self.tales, self.clauses = rng, read(), list(clauses())

    def turn(self):
        """(question, story)."""
        while True:
            form, words = prompts.story(self.rng)
            words["a"] = self.hero(words["a"])
            if self.rng.random() < SHARE_ASK:
                form = self.asked()
            if "who" not in form and self.rng.random() < SHARE_WHO and "{a}" in form:
                form = form.replace("{a}", "{a} {that} {who}")
                past, present, sentences = self.rng.choice(self.clauses)
                words |= {"that": self.rng.choice(("who", "who", "who", "that")), "past": past,
                          "who": present if self.rng.random() < SHARE_PRESENT else past,
                          "sentences": [self.rng.choice(forms) for forms in sentences]}
                words["who"] = words["who"].replace("{his}", self.rng.choice(("his", "her", "its")))
            question = form.format(**words)
            if bare_noun(words["a"]) != "family" and words["a"] != words["b"] and prompts.bare(question) not in prompts.held_out():
                if self.rng.random() < SHARE_OPEN:
                    return self.rng.choice(prompts.split(OPEN)), self.told(self.rng.choice(self.tales["a"]), words)
                needs = next(tale for part, tale in NEEDS if part in form)
                return question, self.told(self.rng.choice(self.tales[needs]), words)

    def hero(self, given):
        """A hero with its article: `given`, or another; it may be like something."""
        draw = lambda text: self.rng.choice(text.split()).replace("_", " ")
        noun = bare_noun(given) if self.rng.random() < 0.5 else draw(HEROES)
        return prompts.article(draw(LIKE) + " " + noun if self.rng.random() < SHARE_LIKE else noun)

    def asked(self):
        """A form of ASK in which the hero is left open."""
        draw = lambda text: self.rng.choice(prompts.split(text))
        form = draw(ASK).format(story=draw(STORY), noun=draw(NOUN), a="{a}", child=draw("son|daughter|kids|children|little sister"))
        return form if self.rng.random() < 0.4 else form[0].upper() + form[1:] + ("" if form[-1] in "?." else ".")

    def told(self, tale, words):
        girl = re.search(r"girl|mother|fairy|hen\b|cow\b|waitress|actress|queen|princess|witch|mermaid|old woman", words["a"])
        boy = re.search(r"boy|rooster|king\b|prince\b|fireman|postman|fisherman|old man|wizard", words["a"])
        fits = [n for n in topics.NAMES.split() if not (boy if n in GIRLS else girl)]
        name = self.rng.choice(fits)
        he, him, his = ("she", "her", "her") if name in GIRLS else ("he", "him", "his")
        words = words | {"x": bare_noun(words["a"]), "y": bare_noun(words["b"]), "name": name, "he": he, "him": him,
                         "his": his, "himself": him + "self"}
        if "past" in words:
            words["who"] = words["past"].format(**words)
            capitals = {key.capitalize(): value[0].upper() + value[1:] for key, value in words.items() if isinstance(value, str)}
            words |= dict(zip(("one", "two", "three"), (s.format(**words, **capitals) for s in words.pop("sentences"))))
        words |= {key.capitalize(): value[0].upper() + value[1:] for key, value in words.items()}
        sentences = [self.rng.choice(part).format(**words) for part in tale]
        # In two paragraphs or in one.
        half = len(sentences) // 2 if self.rng.random() < 0.5 else len(sentences)
        return "\n\n".join(" ".join(part) for part in (sentences[:half], sentences[half:]) if part)


def bare_noun(with_article):
    return with_article.split(" ", 1)[1]
