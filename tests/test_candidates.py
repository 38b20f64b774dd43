"""Tables of candidates: what is there is never measured twice, and a finished table gives way to a better one only."""

import pandas as pd
import pytest

from albert_study.probe import candidates
from albert_study.probe.candidates import SHARE, candidates_of, fill

GIVEN = {name: {"attention": "lsh", "n_hashes": number} for number, name in enumerate(("few", "more", "9"), 1)}


class Killed(BaseException):
    """No `except Exception` catches it, as none catches a kill."""


def measured_into(done, killed_at=None):
    """Measurements whose numbers need all their digits; `done` is told of each."""

    def measure(missing):
        for candidate in missing:
            if candidate.label == killed_at:
                raise Killed
            done.append(candidate.label)
            size = float(len(candidate.label)) ** 0.5
            yield {**candidate.columns, "score": size}, pd.DataFrame({"layer": [0, 1], "error": [size, size / 3]})

    return measure


def ask(path, names, seed=0, killed_at=None):
    """The labels that were measured, and the tables."""
    done = []
    asked = candidates_of({name: GIVEN[name] for name in names})
    try:
        return done, *fill(path, "looks", asked, {"seed": seed}, measured_into(done, killed_at))
    except Killed:
        return done, None, None


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_interrupted_table_is_taken_up_and_ends_the_same(tmp_path):
    whole, killed = tmp_path / "whole" / "table.csv", tmp_path / "killed" / "table.csv"
    assert ask(whole, GIVEN)[0] == list(GIVEN)
    assert ask(killed, GIVEN, killed_at="9")[0] == ["few", "more"]
    assert [file.name for file in killed.parent.iterdir()] == ["table.partial.json"]
    done, table, looks = ask(killed, GIVEN)
    assert done == ["9"]
    assert contents(killed.parent) == contents(whole.parent)
    assert list(table["variant"]) == list(dict.fromkeys(looks["variant"])) == list(GIVEN)


def test_a_finished_table_is_never_replaced_by_a_worse_one(tmp_path):
    path = tmp_path / "table.csv"
    ask(path, ["few", "more"])
    finished = contents(tmp_path)
    ask(path, GIVEN, killed_at="9")
    ask(path, GIVEN, seed=1, killed_at="more")
    assert finished.items() <= contents(tmp_path).items()
    done, table, looks = ask(path, ["more"])
    assert done == []
    assert set(table["variant"]) == set(looks["variant"]) == {"more"}
    assert finished == contents(tmp_path)  # what was begun and is not asked for is gone
    done, table, _ = ask(path, ["9"])
    assert done == list(table["variant"]) == ["9"]
    assert set(pd.read_csv(path)["variant"]) == set(GIVEN)
    assert ask(path, ["few"], seed=1)[0] == ["few"]
    assert pd.read_csv(path).set_index("variant")["seed"].to_dict() == {"few": 1, "more": 0, "9": 0}


@pytest.mark.parametrize("earlier", [[], ["more", "9"]], ids=["no table", "a table"])
def test_killed_at_any_write_it_is_taken_up(tmp_path, monkeypatch, earlier):
    """What is measured twice was not written yet."""
    write, ends = candidates.write_atomically, []
    for last in range(6):  # three times the partial file, two final ones; at last it is not killed
        path, writes = tmp_path / str(last) / "table.csv", []
        if earlier:
            ask(path, earlier)

        def dying(file, text, writes=writes, last=last):
            writes.append(file)
            if len(writes) > last:
                raise Killed
            write(file, text)

        monkeypatch.setattr(candidates, "write_atomically", dying)
        first, _, _ = ask(path, GIVEN)
        found = pd.read_csv(path, dtype={"variant": str})["variant"].tolist() if path.exists() else []
        assert found in (earlier, list(GIVEN))
        monkeypatch.setattr(candidates, "write_atomically", write)
        second, table, looks = ask(path, GIVEN)
        assert list(table["variant"]) == list(dict.fromkeys(looks["variant"])) == list(GIVEN)
        written = sum(file.name == "table.partial.json" for file in writes[:last])
        assert second == [name for name in GIVEN if name not in [*earlier, *first[:written]]]
        ends.append(contents(path.parent))
    assert ends[:-1] == ends[1:]
    assert set(ends[0]) == {"table.csv", "table-looks.csv"}


def test_without_its_looks_a_table_is_measured_again(tmp_path):
    path = tmp_path / "table.csv"
    ask(path, GIVEN)
    (tmp_path / "table-looks.csv").unlink()
    assert ask(path, ["few"])[0] == ["few"]


SHARES = [0.125, 0.12, 1 / 3]


def test_shares_that_read_alike_are_candidates_of_their_own(tmp_path):
    asked = candidates_of({"lsh": {"attention": "lsh", "shares": SHARES}, "window": {"attention": "window"}})
    path, done = tmp_path / "table.csv", []
    fill(path, "looks", asked[:1], {}, measured_into(done))
    fill(path, "looks", asked, {}, measured_into(done))
    assert done == ["lsh", "lsh", "lsh", "window"]
    table, looks = fill(path, "looks", asked, {}, measured_into(done))
    assert len(done) == 4
    for found in (table, pd.read_csv(path), looks.drop_duplicates(SHARE)):
        assert found[SHARE].tolist()[:3] == SHARES
        assert found["variant"].tolist() == ["lsh", "lsh", "lsh", "window"]
    assert len(looks) == 8


def test_shares_are_settings_and_stay_numbers():
    found = candidates_of({"lsh": {"attention": "lsh", "shares": SHARES, "far_field": False}})
    assert [candidate.share for candidate in found] == SHARES
    assert all(candidate.settings["share"] == candidate.share for candidate in found)
    with pytest.raises(ValueError, match="variants: 'lsh': .*share=2"):
        candidates_of({"lsh": {"attention": "lsh", "shares": [0.5, 2]}})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "variants={} must name at least one"),
        ({"a": {"attention": "lhs"}}, "variants: 'a': attention='lhs' is not one of"),
        ({"a": {"n_hashes": 2}}, "variants: 'a': attention=None is not one of"),
        ({"a": {"attention": "lsh", "n_hash": 2}}, "variants: 'a': .*n_hash"),
        ({"a": {"attention": "lsh", "shares": [0.5], "share": 0.5}}, "'a': share and shares cannot both be given"),
        ({"a": {"attention": "lsh", "passes": [0]}}, "'a': .*passes"),  # where all passes are switched
    ],
)
def test_what_is_no_candidate_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        candidates_of(given)
