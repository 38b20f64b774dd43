"""ListOps: answers of trees written by hand, and what is drawn."""

import random

import pytest

from albert_study.long_range import listops


def evaluate_tree(tokens):
    """The value of a tree, from its tokens alone."""
    open_nodes = [[]]  # operators with their arguments so far; the first holds the answer
    for token in tokens:
        if token in listops.OPERATORS:
            open_nodes.append([listops.OPERATORS[token]])
        elif token == listops.END:
            operator, *arguments = open_nodes.pop()
            open_nodes[-1].append(operator(arguments))
        else:
            open_nodes[-1].append(int(token))
    return open_nodes[0][0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MIN 4 7 ]", 4),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MED 1 2 ]", 1),  # int of 1.5
        ("[MED 9 1 5 ]", 5),
        ("[MED 8 1 4 5 ]", 4),  # int of 4.5
        ("[SM 9 9 9 ]", 7),
        ("[SM [MAX 3 8 ] [MED 2 3 9 0 ] [MIN 6 [SM 5 5 ] ] ]", 0),
    ],
)
def test_answers_of_trees_written_by_hand(text, value):
    assert evaluate_tree(text.split()) == value


def test_the_same_seed_draws_the_same_and_fewer_training_examples_change_no_other_split():
    sizes = {"test": 20, "train": 60}
    first, again = (listops.generate(3, sizes, min_length=20, max_length=80) for _ in range(2))
    fewer = listops.generate(3, sizes | {"train": 10}, min_length=20, max_length=80)
    other = listops.generate(4, sizes, min_length=20, max_length=80)
    assert first["train"]["text"] == again["train"]["text"]
    assert fewer["test"]["text"] == first["test"]["text"]
    assert fewer["train"]["text"] == first["train"]["text"][:10]
    assert first["test"]["text"] != other["test"]["text"]
    texts = [*first["train"]["text"], *first["test"]["text"]]
    assert len(set(texts)) == 80


def test_lengths_and_labels_are_those_of_the_texts():
    rows = listops.generate(0, {"train": 100}, min_length=500, max_length=2000)["train"]
    for row in rows:
        assert 500 < len(row["text"].split()) == len(listops.encode_tree(row["text"])) < 2000
        assert row["label"] == evaluate_tree(row["text"].split())
    assert set(listops.encode_tree(rows[0]["text"])) <= set(range(1, 16))


def test_trees_are_drawn_as_by_the_original():
    """A quarter of the nodes above the greatest depth are operators, with 2 to max_args arguments, all as likely."""
    rng = random.Random(0)
    nodes: dict[int, list[str]] = {}  # by depth
    arguments: list[int] = []
    for _ in range(40_000):
        open_here: list[int] = []  # arguments so far of the operators that are open
        for token in listops.draw(rng, 10**6, max_depth=3, max_args=5)[0]:
            if token == "]":
                arguments.append(open_here.pop())
                continue
            nodes.setdefault(len(open_here) + 1, []).append(token)
            if open_here:
                open_here[-1] += 1
            if token in listops.OPERATORS:
                open_here.append(0)
    assert set(nodes) == {1, 2, 3}
    for depth, share in ((1, 0.25), (2, 0.25), (3, 0)):
        operators = [token for token in nodes[depth] if token in listops.OPERATORS]
        assert len(operators) / len(nodes[depth]) == pytest.approx(share, abs=0.01)
        for name in listops.OPERATORS if operators else ():
            assert operators.count(name) / len(operators) == pytest.approx(0.25, abs=0.02)
        for digit in "0123456789":
            assert nodes[depth].count(digit) / len(nodes[depth]) == pytest.approx((1 - share) / 10, abs=0.01)
    assert set(arguments) == {2, 3, 4, 5}
    for number in (2, 3, 4, 5):
        assert arguments.count(number) / len(arguments) == pytest.approx(0.25, abs=0.02)


def test_a_tree_that_is_too_long_is_cut_short_and_never_kept():
    def lengths(longest):
        rng = random.Random(5)
        return [len(listops.draw(rng, longest)[0]) for _ in range(300)]

    assert max(lengths(10**6)) > 1000
    assert 50 < max(lengths(50)) < 500
    kept = listops.generate(0, {"train": 50}, min_length=10, max_length=50)["train"]
    assert max(len(text.split()) for text in kept["text"]) < 50
