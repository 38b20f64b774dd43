"""`make reproduce`: a committed run made again beside its record, and names that have none."""

import json
import shutil

import pytest

from albert_lsh.record import checksum_of
from albert_lsh.run import Run
from albert_lsh.train import fit
from albert_study.reproduce import AGAIN, NoRecordError, interval_over_examples, reproduce

NAME = "small/mini-sst2/mini/softmax/seed-0"
TINY = {"task": "mini-sst2", "model": "mini", "train_examples": 64, "eval_examples": 40, "epochs": 1, "max_length": 32}
STUDY = "parameters: {model: mini}\ntasks: {mini-sst2: {arms: {softmax: }}}\nseeds: [0, 1]\n"


@pytest.fixture
def committed(root):
    """The folder of a run that stands in results/."""
    (root / "studies" / "small.yaml").write_text(STUDY)
    place = {"output_dir": f"results/runs/{NAME}", "results_root": str(root)}
    return fit(Run.parse({**TINY, **place, "precision": "bf16", "device": "cpu", "save_model": True})).folder


def test_a_run_is_made_again_in_a_folder_of_its_own_and_both_scores_stand_side_by_side(
    committed, root, capfd, monkeypatch
):
    monkeypatch.setattr("albert_lsh.run.fastest_precision", lambda device: "fp32")
    path = committed / "result.json"
    old = json.loads(path.read_text())
    old["environment"] |= {"device": "cpu, another"}
    old["parameters"] |= {"passes": None, "data_dir": None}  # which left, as older records have them
    old["checksum"] = checksum_of(old)
    path.write_text(json.dumps(old))
    kept = path.read_bytes()

    new = reproduce(NAME)
    out, err = capfd.readouterr()
    assert path.read_bytes() == kept
    assert json.loads((root / AGAIN / NAME / "result.json").read_text())["metrics"] == new["metrics"]
    assert not (root / AGAIN / NAME / "model").exists()
    assert new["parameters"]["precision"] == "fp32"
    assert out.startswith(f"the committed run took {old['train_seconds']:.0f} s of training in bf16 on cpu, another")
    assert "2/2" in err  # the bar of its two steps
    low, high = interval_over_examples(committed, "accuracy")
    assert low < old["metrics"]["accuracy"] < high
    assert f"95 % interval over examples {low:.4f} to {high:.4f}" in out
    assert "  precision: bf16, now fp32" in out
    assert "  processor: cpu, another, now cpu, " in out
    assert "  torch: " not in out

    reproduce(f"results/runs/{NAME}/")
    assert "this run was made already" in capfd.readouterr().out


def test_a_run_without_a_record_is_named_with_what_makes_it_or_with_the_nearest_ones(committed):
    with pytest.raises(NoRecordError, match=r"seed-1' is planned .*`make study STUDY=small` makes"):
        reproduce(NAME.replace("seed-0", "seed-1"))
    with pytest.raises(NoRecordError, match=f"is none of the 1 runs in results/runs; nearest: {NAME}$"):
        reproduce("small/mini-stt2/mini/softmax/seed-0")
    shutil.copytree(committed, committed.parents[5] / AGAIN.removeprefix("results/runs/") / NAME)
    for wrong in ("", "../runs", "reproduced/" + NAME):
        with pytest.raises(NoRecordError, match="is none of the 1 runs"):
            reproduce(wrong)
