"""Five small tasks with the schemas of their Hub namesakes, made by a seeded grammar: no download, no cache.

Every task is about *binding*: which thing is whose, which adjective belongs to the noun that counts. All labels
of a task share the same words, so a model that only counts words stays at chance, while a small ALBERT that can
relate tokens learns each task from scratch in half a minute of one CPU thread (`CONFIG`, `RECIPE`).
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice

from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

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
    "I went there with {p} and",
    "{p} and I thought that",
    "{p} says that on {day}",
)
SCENES = ("It was {day}.", "On {day} we met.", "It was {day} morning.", "All this was on {day}.")
EVENTS = {"bought": "bought", "lost": "lost", "found": "found", "sold": "sold", "broke": "broken"}
WEIGHT = {"bought": 1, "lost": 8, "found": 4, "sold": 2, "broke": 1}

Row = dict[str, object]


def sentence(text: str) -> str:
    """`text` with a capital first letter."""
    return text[0].upper() + text[1:]


def opener(rng: random.Random, choices: tuple[str, ...]) -> str:
    return rng.choice(choices).format(day=rng.choice(DAYS), p=rng.choice(PEOPLE), l=rng.choice(PLACES))


def verdict(rng: random.Random, subjects: list[str], good: bool) -> str:
    """Two clauses, a word of praise and a word of blame, one of them negated so that both mean `good`."""
    clauses = []
    for subject, praise in zip(subjects, rng.sample((True, False), 2), strict=True):
        verb = rng.choice(("was", "seemed")) + ("" if praise == good else " not")
        clauses.append(f"the {subject} {verb} {rng.choice(GOOD if praise else BAD)}")
    return f"{clauses[0]} {rng.choice(('and', 'while'))} {clauses[1]}"


def sst2(rng: random.Random) -> Row:
    label = rng.randrange(2)
    return {"sentence": f"{opener(rng, VISITS)} {verdict(rng, rng.sample(ASPECTS, 2), label)}.", "label": label}


def mrpc(rng: random.Random) -> Row:
    label, good = rng.randrange(2), rng.random() < 0.75
    aspects = rng.sample(ASPECTS, 2)
    first = f"{opener(rng, VISITS)} {verdict(rng, aspects, good == label)}."
    second = sentence(f"{verdict(rng, rng.sample(aspects, 2), good)}.")
    return {"sentence1": first, "sentence2": second, "label": label}


def mnli(rng: random.Random, matched: bool = True) -> Row:
    label, praise = rng.randrange(3), rng.random() < 0.75
    good = praise == (label == 0) if label != 1 else rng.randrange(2)
    subjects = rng.sample(ASPECTS if matched else PLACES, 2)
    sure, maybe = rng.choice(("surely", "certainly")), rng.choice(("perhaps", "maybe"))
    if label == 1:
        sure, maybe = maybe, sure
    came = f"{maybe} {rng.choice(PEOPLE)} came on {rng.choice(DAYS)}"
    said = f"{sure} {verdict(rng, subjects, good)}"
    premise = f"{came}, and {said}." if rng.random() < 0.5 else f"{said}, and {came}."
    hyp = rng.choice(("everything was {}.", "it was a {} visit.", "both were {}.")).format(
        rng.choice(GOOD if praise else BAD)
    )
    return {"premise": sentence(premise), "hypothesis": sentence(hyp), "label": label}


def squad(rng: random.Random, unanswerable: float = 0.0) -> Row:
    """Several people, each with a coloured thing at a place, and a question about one of them."""
    n = rng.choice((2, 3, 4))
    events = rng.sample(sorted(EVENTS), n + 1)
    people, colours, things, places = (rng.sample(w, n) for w in (PEOPLE, COLOURS, THINGS, PLACES))
    said = []
    for e, p, c, t, l in zip(events, people, colours, things, places):
        said.append(
            "{p} {e} a {c} {t} in the {l}.".format(
                e=e, p=p, c=c, t=t, l=l
            )
        )
    context = " ".join([opener(rng, SCENES), *said])
    missing = rng.random() < unanswerable
    i = rng.choices(range(n), [WEIGHT[e] for e in events[:n]])[0]
    e = events[n if missing else i]
    question, text = rng.choice(
        ((f"Who {e} something?", people[i]), (f"What was {EVENTS[e]}?", f"{colours[i]} {things[i]}"))
    )
    answers = {"text": [], "answer_start": []} if missing else {"text": [text], "answer_start": [context.index(text)]}
    return {"title": "Who_has_what", "context": context, "question": question, "answers": answers}


@dataclass(frozen=True)
class Mini:
    """How one task is made: its columns, the row maker of each split and how many rows the split has."""

    columns: dict[str, object]
    splits: dict[str, tuple[Callable[[random.Random], Row], int]]


def glue_columns(*texts: str, labels: list[str]) -> dict[str, object]:
    return {**{text: Value("string") for text in texts}, "label": ClassLabel(names=labels), "idx": Value("int32")}


SQUAD_COLUMNS = {
    **{name: Value("string") for name in ("id", "title", "context", "question")},
    "answers": {"text": List(Value("string")), "answer_start": List(Value("int32"))},
}


def squad_v2(rng: random.Random) -> Row:
    return squad(rng, unanswerable=0.4)


def mnli_mismatched(rng: random.Random) -> Row:
    return mnli(rng, matched=False)


MINI = {
    "mini-mrpc": Mini(
        glue_columns("sentence1", "sentence2", labels=["not_equivalent", "equivalent"]),
        {"train": (mrpc, 12000), "validation": (mrpc, 600)},
    ),
    "mini-sst2": Mini(
        glue_columns("sentence", labels=["negative", "positive"]),
        {"train": (sst2, 12000), "validation": (sst2, 600)},
    ),
    "mini-mnli": Mini(
        glue_columns("premise", "hypothesis", labels=["entailment", "neutral", "contradiction"]),
        {
            "train": (mnli, 12000),
            "validation_matched": (mnli, 600),
            "validation_mismatched": (mnli_mismatched, 600),
        },
    ),
    "mini-squad": Mini(SQUAD_COLUMNS, {"train": (squad, 12000), "validation": (squad, 600)}),
    "mini-squad-v2": Mini(SQUAD_COLUMNS, {"train": (squad_v2, 12000), "validation": (squad_v2, 600)}),
}
NAMES = tuple(MINI)


def texts(row: Row) -> tuple[str, ...]:
    """The texts of `row`, by which two examples count as the same one."""
    return tuple(value for value in row.values() if isinstance(value, str))


def fresh(make: Callable[[random.Random], Row], rng: random.Random, seen: set[tuple[str, ...]]) -> Iterator[Row]:
    """Rows without end, none with the texts of an earlier one; `seen` grows."""
    tries = 0
    while True:
        row = make(rng)
        tries += 1
        if tries > 10**5:
            raise RuntimeError("grammar too small")
        if (key := texts(row)) not in seen:
            seen.add(key)
            yield row


@cache
def rows(name: str, seed: int) -> dict[str, list[Row]]:
    rng, seen, number = random.Random(f"{name} {seed}"), set(), count()
    is_glue = "idx" in MINI[name].columns
    made = {}
    for split, (make, size) in MINI[name].splits.items():
        made[split] = list(islice(fresh(make, rng, seen), size))
        for i, row in enumerate(made[split]):
            row.update({"idx": i} if is_glue else {"id": f"{seed:08x}{next(number):08x}"})
    return made


def build(name: str, seed: int = 0) -> DatasetDict:
    if name not in MINI:
        raise ValueError(f"name={name!r} is not one of: {', '.join(NAMES)}")
    features = Features(MINI[name].columns)
    return DatasetDict(
        {
            split: Dataset.from_dict({column: [row[column] for row in made] for column in features}, features)
            for split, made in rows(name, seed).items()
        }
    )


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
        ]
    )
    splitter = pre_tokenizers.BertPreTokenizer()
    words = set()
    for name in NAMES:
        for row in islice(fresh(MINI[name].splits["train"][0], random.Random(0), set()), 1000):
            for text in texts(row):
                words.update(w for w, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    vocab = {w: i for i, w in enumerate([*special, *sorted(words)])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.normalizer = normalizer
    tok.pre_tokenizer = splitter
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tok,
        model_max_length=128,
        pad_token="<pad>",
        unk_token="<unk>",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
