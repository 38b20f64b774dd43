"""Five small tasks with the schemas of their Hub namesakes, made by a seeded grammar: no download, no cache.

Every task is about *binding*: which word "not" negates, who did which thing. The classes of a task share the same
words, so a linear model of word counts stays at chance. A small ALBERT ("mini", whose shape and word-level tokenizer
are in `pretrained`) learns each task from scratch in half a minute of one CPU thread (recipe: studies/mini.yaml).

A label that is an exclusive-or of two facts keeps a transformer on a long plateau. Two things shorten it without
helping a counter of words: one value of the second fact is more frequent than the other (`PRAISE`, the weights in
`EVENTS`), and the training splits of mini-mrpc and mini-mnli have easy examples.

Positions help as well: a model that sees each token alone, with its position, can guess which clause "not" is in.
Phrases of place and time around the text (`wander`) prevent that in mini-sst2, but only in part in mini-mnli, where
such a model still reaches an accuracy of about two thirds.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

PEOPLE = ["Anna", "Ben", "Carla", "David", "Emma", "Felix", "Greta", "Henry"]
THINGS = ["ball", "kite", "drum", "book", "lamp", "coat", "clock", "rope"]
COLOURS = ["red", "blue", "green", "white", "black", "yellow"]
PLACES = ["kitchen", "garden", "school", "park", "station", "library"]
ASPECTS = ["food", "music", "service", "room", "view", "staff", "coffee", "story"]
GOOD = ["lovely", "great", "superb", "charming"]
BAD = ["awful", "poor", "dull", "dreadful"]
DAYS = ["Monday", "Tuesday", "Friday", "Sunday"]
VISITS = (
    "We came on {day} and",
    "Last {day}",
    "I went there with {person} and",
    "{person} and I thought that",
    "{person} says that on {day}",
)
PHRASES = (  # of two to five words
    ("on {day}", "last {day}", "early on {day}"),
    ("with {person}", "with old friends of {person}"),
    ("in the {place}", "at the {place}", "near the old {place}"),
    ("after a long walk", "before lunch", "late in the evening"),
)
SCENES = ("It was {day}.", "This was {day}.", "Remember last {day}.", "We met {day}.")  # of one length, on purpose
EVENTS = {  # verb: (its participle, how often it is asked about)
    "lost": ("lost", 8),
    "found": ("found", 4),
    "sold": ("sold", 2),
    "bought": ("bought", 1),
    "broke": ("broken", 1),
}
PRAISE = 0.75  # how often the text that is compared with another one is praise

Row = dict[str, object]


def capital(text: str) -> str:
    """`text` with a capital first letter."""
    return text[0].upper() + text[1:]


def opener(rng: random.Random, forms: Sequence[str]) -> str:
    """One of `forms`, its slots filled."""
    return rng.choice(forms).format(day=rng.choice(DAYS), person=rng.choice(PEOPLE), place=rng.choice(PLACES))


def verdict(rng: random.Random, subjects: Sequence[str], good: bool, easy: float = 0.0) -> str:
    """Two clauses, a word of praise and a word of blame, one of them negated so that both mean `good`.

    With probability `easy` both words say it outright instead.
    """
    words = (good, good) if rng.random() < easy else rng.sample((True, False), 2)
    clauses = []
    for subject, praise in zip(subjects, words, strict=True):
        verb = rng.choice(("was", "seemed")) + ("" if praise == good else " not")
        clauses.append(f"the {subject} {verb} {rng.choice(GOOD if praise else BAD)}")
    return f"{clauses[0]} {rng.choice(('and', 'while'))} {clauses[1]}"


def wander(rng: random.Random, text: str, n: int = 3) -> str:
    """`text` among `n` phrases of place and time, some before it and some after: no word has a place of its own."""
    phrases = [opener(rng, form) for form in rng.sample(PHRASES, n)]
    before = rng.randrange(n + 1)
    return " ".join([*phrases[:before], text, *phrases[before:]])


def sst2(rng: random.Random, label: int) -> Row:
    """A review; which of its two adjectives is negated makes it positive (1) or negative (0)."""
    said = verdict(rng, rng.sample(ASPECTS, 2), good=label == 1)
    return {"sentence": capital(f"{wander(rng, said)}."), "label": label}


def mrpc(rng: random.Random, label: int, easy: float = 0.0) -> Row:
    """Two reviews of the same two aspects, in the same (1) or the opposite (0) sense."""
    aspects, good = rng.sample(ASPECTS, 2), rng.random() < PRAISE
    first = f"{opener(rng, VISITS)} {verdict(rng, aspects, good == (label == 1), easy)}."
    second = capital(f"{verdict(rng, rng.sample(aspects, 2), good, easy)}.")
    return {"sentence1": first, "sentence2": second, "label": label}


def mnli(rng: random.Random, label: int, subjects: Sequence[str] = ASPECTS, easy: float = 0.0) -> Row:
    """A review that is sure or unsure (neutral, 1) of its verdict, and a summary that fits (0) or contradicts (2)."""
    praise = rng.random() < PRAISE
    good = rng.random() < 0.5 if label == 1 else praise == (label == 0)
    is_easy = rng.random() < easy
    adverbs = [rng.choice(("surely", "certainly")), rng.choice(("perhaps", "maybe"))]
    of_verdict, of_visit = reversed(adverbs) if label == 1 else adverbs
    clauses = [
        f"{of_verdict} {verdict(rng, rng.sample(subjects, 2), good, is_easy)}",
        f"{of_visit} {rng.choice(PEOPLE)} came",
    ]
    rng.shuffle(clauses)
    premise = " and ".join(clauses)
    if not is_easy:
        premise = wander(rng, premise, 2)
    summary = rng.choice(("everything was {}.", "it was a {} visit.", "both were {}."))
    hypothesis = summary.format(rng.choice(GOOD if praise else BAD))
    return {"premise": capital(f"{premise}."), "hypothesis": capital(hypothesis), "label": label}


def squad(rng: random.Random, answerable: bool) -> Row:
    """Two to four people who each did another thing, and a question about one event, or about one that is not told."""
    n = rng.choice((2, 3, 4))
    verbs = rng.sample(sorted(EVENTS), n + 1)
    people, colours, things, places = (rng.sample(words, n) for words in (PEOPLE, COLOURS, THINGS, PLACES))
    objects = [f"{colour} {thing}" for colour, thing in zip(colours, things, strict=True)]
    told = [
        f"{person} {verb} a {what} {rng.choice(('in', 'at', 'near'))} the {place}."
        for person, verb, what, place in zip(people, verbs, objects, places, strict=False)
    ]
    context = " ".join([opener(rng, SCENES), *told])
    i = rng.choices(range(n), [EVENTS[verb][1] for verb in verbs[:n]])[0]
    verb = verbs[i if answerable else n]
    who = rng.random() < 0.5
    question = f"Who {verb} something?" if who else f"What was {EVENTS[verb][0]}?"
    text = people[i] if who else objects[i]
    texts = [text] if answerable else []
    answers = {"text": texts, "answer_start": [context.index(text) for text in texts]}
    return {"title": "Who_did_what", "context": context, "question": question, "answers": answers}


def glue(texts: str, labels: str) -> Features:
    """GLUE's columns: texts, label, idx."""
    columns = dict.fromkeys(texts.split(), Value("string"))
    return Features({**columns, "label": ClassLabel(names=labels.split()), "idx": Value("int32")})


SQUAD_COLUMNS = Features(
    {
        **dict.fromkeys(("id", "title", "context", "question"), Value("string")),
        "answers": {"text": List(Value("string")), "answer_start": List(Value("int32"))},
    }
)
SQUAD_SPLITS = {"train": (squad, 9000), "validation": (squad, 600)}
# Of each task its columns, the kinds of row that take turns, and by split what makes a row, and how many.
MINI: dict[str, tuple[Features, Sequence[int], dict[str, tuple[Callable[..., Row], int]]]] = {
    "mini-mrpc": (
        glue("sentence1 sentence2", "not_equivalent equivalent"),
        (0, 1),
        {"train": (partial(mrpc, easy=0.4), 9000), "validation": (mrpc, 600)},
    ),
    "mini-sst2": (glue("sentence", "negative positive"), (0, 1), {"train": (sst2, 6000), "validation": (sst2, 600)}),
    "mini-mnli": (
        glue("premise hypothesis", "entailment neutral contradiction"),
        (0, 1, 2),
        {
            "train": (partial(mnli, easy=0.5), 9000),
            "validation_matched": (mnli, 600),
            "validation_mismatched": (partial(mnli, subjects=PLACES), 600),
        },
    ),
    "mini-squad": (SQUAD_COLUMNS, (True,), SQUAD_SPLITS),
    "mini-squad-v2": (SQUAD_COLUMNS, (True, False, True, False, True), SQUAD_SPLITS),
}


def build(name: str, seed: int = 0) -> DatasetDict:
    """The splits of the task `name`, in memory; the same for the same seed, and no example is in two splits."""
    (columns, kinds, sizes), rng = MINI[name], random.Random(f"{name} {seed}")
    splits, seen = DatasetDict(), set()
    for split, (make, size) in sizes.items():
        rows = []
        for kind in islice(cycle(kinds), size):
            row = make(rng, kind)
            while (texts := tuple(value for value in row.values() if isinstance(value, str))) in seen:
                row = make(rng, kind)
            seen.add(texts)
            rows.append(row)
        rng.shuffle(rows)
        for i, row in enumerate(rows):
            row |= {"idx": i} if "idx" in columns else {"id": f"{name}-{split}-{seed}-{i}"}
        splits[split] = Dataset.from_dict({column: [row[column] for row in rows] for column in columns}, columns)
    return splits
