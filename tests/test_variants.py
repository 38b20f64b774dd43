"""Tables of variants: what is there is never measured twice, and a finished table gives way to a better one only."""

import contextlib
import json
from functools import partial

import pandas as pd
import pytest

from albert_lsh.files import FolderInUseError, lock
from albert_study.probe.variants import SHARE, fill, growing_table, variants_of

VARIANTS = {
    name: {"attention": "key-clusters", "n_hashes": number} for number, name in enumerate(("few", "more", "9"), 1)
}


class Killed(BaseException):
    """No `except Exception` catches it, as none catches a kill."""


def run(path, variants, seed=0, killed_at=None):
    """The labels that were measured, with numbers that need all their digits, and the tables."""
    done = []

    def measure(missing):
        for variant in missing:
            if variant.label == killed_at:
                raise Killed
            done.append(variant.label)
            size = float(len(variant.label)) ** 0.5
            yield {"score": size}, pd.DataFrame({"layer": [0, 1], "error": [size, size / 3]})

    with contextlib.suppress(Killed):
        return done, *fill(path, "looks", variants, {"seed": seed}, measure)
    return done, None, None


def ask(path, names, **more):
    return run(path, variants_of({name: VARIANTS[name] for name in names}), **more)


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_interrupted_table_is_taken_up_and_ends_the_same(tmp_path):
    whole, killed = tmp_path / "whole" / "table.csv", tmp_path / "killed" / "table.csv"
    assert ask(whole, VARIANTS)[0] == list(VARIANTS)
    assert ask(killed, VARIANTS, killed_at="9")[0] == ["few", "more"]
    assert not killed.exists()
    done, table, looks = ask(killed, VARIANTS)
    assert done == ["9"]
    assert contents(killed.parent) == contents(whole.parent)
    assert list(table["variant"]) == list(dict.fromkeys(looks["variant"])) == list(VARIANTS)


def test_a_table_is_filled_by_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("albert_study.probe.variants.lock", partial(lock, wait=0))
    with growing_table(tmp_path / "table.csv"), pytest.raises(FolderInUseError, match="in use by another process"):
        ask(tmp_path / "table.csv", ["few"])


def test_a_finished_table_is_never_replaced_by_a_worse_one(tmp_path):
    path = tmp_path / "table.csv"
    ask(path, ["few", "more"])
    finished = contents(tmp_path)
    ask(path, VARIANTS, killed_at="9")
    ask(path, VARIANTS, seed=1, killed_at="more")
    assert finished.items() <= contents(tmp_path).items()
    for name in contents(tmp_path).keys() - finished.keys():
        (tmp_path / name).unlink()
    done, table, looks = ask(path, ["more"])
    assert (done, set(table["variant"]), set(looks["variant"])) == ([], {"more"}, {"more"})
    assert ask(path, ["9"])[0] == ["9"]
    assert set(pd.read_csv(path)["variant"]) == set(VARIANTS)
    assert ask(path, ["few"], seed=1)[0] == ["few"]
    assert pd.read_csv(path).set_index("variant")["seed"].to_dict() == {"few": 1, "more": 0, "9": 0}


def test_old_rows_have_the_names_of_today_and_what_was_measured_is_not_measured_again(tmp_path):
    """A row without a schema is older than these names; without axes it is of version 1, which is another method."""
    path = tmp_path / "table.csv"
    ask(path, ["few", "more"])
    table = pd.read_csv(path).assign(attention="lsh", variant=["lsh", "more"])
    settings = [json.loads(text) for text in table["settings"]]
    del settings[0]["axes"], settings[1]["mean_key"]
    table.assign(settings=list(map(json.dumps, settings))).to_csv(path, index=False)
    assert ask(path, ["few", "more"])[0] == ["few"]
    rows = pd.read_csv(path).set_index("variant")
    assert rows["attention"].to_dict() == {"lsh-tree": "lsh-tree", "more": "key-clusters", "few": "key-clusters"}
    assert "axes" not in json.loads(rows.loc["lsh-tree", "settings"])
    assert ask(path, ["few", "more"])[0] == []  # what was written is not translated again


def test_shares_that_read_alike_are_variants_of_their_own(tmp_path):
    shares = [0.125, 0.12, 1 / 3]
    variants = variants_of(
        {"key-clusters": {"attention": "key-clusters", "shares": shares}, "window": {"attention": "window"}}
    )
    path = tmp_path / "table.csv"
    run(path, variants[:1])
    for missing in (["key-clusters", "key-clusters", "window"], []):
        done, table, looks = run(path, variants)
        assert done == missing
        for rows in (table, pd.read_csv(path), looks.drop_duplicates(SHARE)):
            assert rows[SHARE].tolist()[:3] == shares
            assert rows["variant"].tolist() == ["key-clusters", "key-clusters", "key-clusters", "window"]
        assert len(looks) == 8


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({}, "variants={} must name at least one"),
        ({"a": {"attention": "lhs"}}, "variants: 'a': attention='lhs' is not one of"),
        (
            {"a": {"attention": "key-clusters", "shares": [0.5], "share": 0.5}},
            "'a': share and shares cannot both be given",
        ),
        ({"a": {"attention": "truncation", "share": 1.5}}, "'a': truncation takes a share, over 0 and at most 1"),
        ({"a": {"attention": "truncation", "share": 0.5, "keys": 3}}, "'a': truncation takes a share, .* nothing else"),
    ],
)
def test_what_is_no_variant_is_named(variants, message):
    with pytest.raises(ValueError, match=message):
        variants_of(variants)
