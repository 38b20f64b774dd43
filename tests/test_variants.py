"""Tables of variants: what is there is never measured twice, and a finished table gives way to a better one only."""

import pandas as pd
import pytest
import torch

from albert_study.probe import fidelity, reading, variants
from albert_study.probe.variants import fill, list_variants
from test_fidelity import keep_untrained

GIVEN = {name: {"attention": name, "n_hashes": 2, "cluster_size": 4} for name in ("window", "random", "lsh")}


class Killed(BaseException):
    """No `except Exception` catches it, as none catches a kill."""


@pytest.fixture(params=["fidelity", "reading"])
def ask(request, tmp_path, monkeypatch):
    """Has some of GIVEN measured, up to one where it is killed; returns the tables, `ask.measured` notes what was."""
    module = {"fidelity": fidelity, "reading": reading}[request.param]
    diagnose = module.diagnose
    if module is fidelity:
        keep_untrained(tmp_path / "run", "mini-mrpc")

    def watched(model, batches, base, variant, seed):
        if variant.label == ask.killed_at:
            raise Killed
        ask.measured.append(variant.label)
        return diagnose(model, batches, base, variant, seed)

    def ask(path, names, seed=0, killed_at=None):
        ask.measured, ask.killed_at = [], killed_at
        given = {"variants": {name: GIVEN[name] for name in names}, "seed": seed, "output": str(path)}
        if module is fidelity:
            given |= {"trained": str(tmp_path / "run"), "examples": 12, "looked_into": 4}
            asked = fidelity.Asked.check(given)
            return fidelity.measure_all(fidelity.prepare(asked.run, asked.split, asked.examples), asked)
        given |= {"model": "mini", "task": "mini-squad", "max_length": 32, "paragraphs": 3}
        torch.manual_seed(0)  # of the model's weights
        return reading.read_all(reading.Reading.check(given))

    monkeypatch.setattr(module, "diagnose", watched)
    return ask


def contents(folder):
    """The text of every file in a folder, without dates."""
    return {
        path.name: pd.read_csv(path, dtype=str).drop(columns="date", errors="ignore").to_csv()
        for path in folder.iterdir()
    }


def test_an_interrupted_table_is_taken_up_and_ends_the_same(ask, tmp_path):
    whole, killed = tmp_path / "whole" / "table.csv", tmp_path / "killed" / "table.csv"
    ask(whole, GIVEN)
    assert ask.measured == list(GIVEN)
    with pytest.raises(Killed):
        ask(killed, GIVEN, killed_at="lsh")
    assert all(".partial" in path.name for path in killed.parent.iterdir())
    table, looks = ask(killed, GIVEN)
    assert ask.measured == ["lsh"]
    assert contents(killed.parent) == contents(whole.parent)
    assert len(contents(whole.parent)) == 2
    assert list(table["variant"]) == list(dict.fromkeys(looks["variant"])) == list(GIVEN)


def test_a_finished_table_is_never_replaced_by_a_worse_one(ask, tmp_path):
    path = tmp_path / "tables" / "table.csv"
    ask(path, ["window", "random"])
    finished = contents(path.parent)
    for again in ({"names": GIVEN, "killed_at": "lsh"}, {"names": GIVEN, "seed": 1, "killed_at": "random"}):
        with pytest.raises(Killed):
            ask(path, **again)
        assert finished.items() <= contents(path.parent).items()
    table, looks = ask(path, ["random"])
    assert ask.measured == []
    assert set(table["variant"]) == set(looks["variant"]) == {"random"}
    assert finished.items() <= contents(path.parent).items()
    table, looks = ask(path, ["lsh"])
    assert ask.measured == list(table["variant"]) == ["lsh"]
    assert set(looks["variant"]) == {"lsh"}
    assert set(pd.read_csv(path)["variant"]) == set(GIVEN)
    before, _ = ask(path, ["random", "window"])
    assert ask.measured == []
    after, _ = ask(path, ["random", "window"], seed=1)
    assert ask.measured == ["random", "window"]
    assert [x != y for x, y in zip(before["error"], after["error"], strict=True)] == [True, False]


def test_what_was_begun_and_is_no_longer_asked_for_goes(ask, tmp_path):
    """A variant that was given another name, say, is not to appear under both."""
    path = tmp_path / "tables" / "table.csv"
    with pytest.raises(Killed):
        ask(path, GIVEN, killed_at="lsh")
    ask(path, ["random"])
    assert ask.measured == []
    assert [file.name.count(".partial") for file in path.parent.iterdir()] == [0, 0]
    assert list(pd.read_csv(path)["variant"]) == ["random"]


def measured_into(done):
    """Measurements whose numbers need all their digits; `done` is told of each."""

    def measure(missing):
        for variant in missing:
            done.append(variant.label)
            size = torch.tensor(float(len(variant.label))).double().sqrt().item()
            yield {**variant.columns, "score": size}, pd.DataFrame({"layer": [0, 1], "error": [size, size / 3]})

    return measure


@pytest.mark.parametrize("earlier", [[], ["window", "9"], ["random"]], ids=["no table", "a table", "one of others"])
def test_killed_at_any_write_it_is_taken_up(tmp_path, monkeypatch, earlier):
    """Also labels that look like numbers. What is measured twice was not written yet."""
    given = {**GIVEN, "9": GIVEN["random"]}
    asked, before = list_variants({k: given[k] for k in ("9", "lsh", "window")}), {k: given[k] for k in earlier}
    write, ends = variants.write_atomically, []
    for last in range(9):  # three times two partial files, two final ones; at last it is not killed
        path = tmp_path / str(last) / "table.csv"
        writes = []

        def dying(file, text, writes=writes, last=last):
            writes.append(file)
            if len(writes) > last:
                raise Killed
            write(file, text)

        if before:
            fill(path, "looks", list_variants(before), {"seed": 0}, measured_into([]))
        monkeypatch.setattr(variants, "write_atomically", dying)
        first, second = [], []
        try:
            fill(path, "looks", asked, {"seed": 0}, measured_into(first))
        except Killed:
            found = pd.read_csv(path, dtype={"variant": str})["variant"].tolist() if path.exists() else []
            assert found == earlier
        monkeypatch.setattr(variants, "write_atomically", write)
        table, looks = fill(path, "looks", asked, {"seed": 0}, measured_into(second))
        assert list(table["variant"]) == list(dict.fromkeys(looks["variant"])) == ["9", "lsh", "window"]
        written = sum(file.name == "table.partial.csv" for file in writes[:last])
        assert second == [v.label for v in asked if v.label not in [*earlier, *first[:written]]]
        ends.append({file.name: file.read_text() for file in path.parent.iterdir()})
    assert ends[:-1] == ends[1:]
    assert set(ends[0]) == {"table.csv", "table-looks.csv"}


def test_without_its_looks_a_row_is_measured_again_and_the_others_stay(tmp_path):
    path, done = tmp_path / "table.csv", []
    fill(path, "looks", list_variants(GIVEN), {}, measured_into(done))
    (tmp_path / "table-looks.csv").unlink()
    fill(path, "looks", list_variants({"lsh": GIVEN["lsh"]}), {}, measured_into(done))
    assert done == [*GIVEN, "lsh"]
    assert set(pd.read_csv(path)["variant"]) == set(GIVEN)


SHARES = [0.125, 0.12, 1 / 3]
BUDGETS = {"lsh": {"attention": "lsh", "shares": SHARES, "length": 480}, "window": GIVEN["window"]}


def test_shares_that_read_alike_are_variants_of_their_own(tmp_path):
    asked, done = list_variants(BUDGETS), []
    assert [(v.label, v.share) for v in asked] == [*(("lsh", share) for share in SHARES), ("window", None)]
    path = tmp_path / "table.csv"
    fill(path, "looks", asked[:1], {}, measured_into(done))
    fill(path, "looks", asked, {}, measured_into(done))
    assert done == ["lsh", "lsh", "lsh", "window"]
    table, looks = fill(path, "looks", asked, {}, measured_into(done))
    assert len(done) == 4
    for found in (table, pd.read_csv(path), looks.drop_duplicates("share_asked")):
        assert found["share_asked"].tolist()[:3] == SHARES
        assert found["variant"].tolist() == ["lsh", "lsh", "lsh", "window"]
    assert len(looks) == 8


def test_rows_from_when_shares_stood_in_labels_are_not_measured_again(tmp_path):
    path, done = tmp_path / "table.csv", []
    new = list_variants(BUDGETS)
    old = [v._replace(label=f"{v.label} {v.share:.2g}", share=None) for v in (new[0], new[2])]
    fill(path, "looks", old, {}, measured_into([]))
    table, looks = fill(path, "looks", new, {}, measured_into(done))
    assert len(done) == 2  # 0.12 and the window: what was "lsh 0.12" has the settings of 0.125
    assert table["share_asked"].tolist()[:3] == SHARES
    assert table["score"].tolist()[0] == table["score"].tolist()[2] == 8**0.5
    assert len(looks) == 8
    assert set(pd.read_csv(path)["variant"]) == {"lsh", "window"}


def test_a_share_or_shares(tmp_path):
    with pytest.raises(ValueError, match="variants: 'lsh': share and shares cannot both be given"):
        list_variants({"lsh": {"attention": "lsh", "shares": [0.5], "share": 0.5}})
    with pytest.raises(ValueError, match="variants: 'lsh': share=2 must be above 0"):
        list_variants({"lsh": {"attention": "lsh", "shares": [0.5, 2]}})
