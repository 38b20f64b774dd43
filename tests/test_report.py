"""Report, poster, summary and the page to explore: made of what there is, and of nothing else."""

import itertools
import json
import re
import shutil
import subprocess

import pytest

from albert_lsh.files import repository_root
from albert_study.compare import write_tables
from albert_study.figures import write_figures
from albert_study.report import build, texts, write_texts
from records import write_run

ROOT = repository_root()
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = """<img src=x onerror="boom()"> & 'it'"""


def test_the_report_compiles_with_one_study_and_with_more(tree):
    pytest.importorskip("typst")
    write_tables("mini", root=tree)
    write_figures("mini", root=tree)
    first = build(tree)[0].read_bytes()
    assert first.startswith(b"%PDF")
    assert build(tree)[0].read_bytes() == first
    for seed in (0, 1):
        write_run(tree, "lsh", seed, {"exact": 60.0, "f1": 70.0 + seed}, task="squad", study="minilm")
    folder = write_run(tree, "softmax", 0, {"pearson": -0.1}, task="stsb", study="alone", headline="pearson")
    path = folder / "result.json"
    path.write_text(path.read_text().replace('"train_seconds": 10.0', '"train_seconds": 7200.0'))
    write_tables("minilm", "alone", root=tree)
    assert build(tree)[0].read_bytes() != first
    made = json.loads((tree / "report" / "texts.json").read_text())
    assert made["studies"] == ["minilm", "alone", "mini"]
    assert made["trained"] == {"runs": "9", "hours": "2"}
    label, cell, *_ = made["tables"]["alone-scores"]["rows"][0]
    assert (label, cell) == ("softmax", "−0.100 (1)")
    (tree / "results" / "tables" / "mini-scores.csv").unlink()  # whose results are gone leaves the report
    assert "mini-scores" not in texts(tree)["tables"]


@pytest.mark.parametrize(("task", "count"), [("mini-sst2", 1), ("sst2", 0)])
def test_a_studys_pages_begin_by_saying_which_data_are_made_up(tree, task, count):
    typst = pytest.importorskip("typst")
    write_run(tree, "softmax", 0, {"accuracy": 0.9}, task=task, study="own", headline="accuracy")
    write_tables("own", root=tree)
    write_texts(tree, "own")
    said = json.loads(typst.query(str(tree / "report/study.typ"), "<made-up>", root=str(tree)))
    assert len(said) == count
    assert all(task in json.dumps(one) for one in said)


@pytest.mark.parametrize("gone", ["albert", "minilm"])
def test_report_poster_and_summary_do_without_a_study_that_was_not_run(tmp_path, gone):
    for folder in ("results", "figures"):
        unread = shutil.ignore_patterns("*.parquet", "*.ipynb", "*.pdf", "model", "checkpoints", gone)
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unread)
    for path in tmp_path.glob(f"results/tables/{gone}-[dsp]*"):
        path.unlink()
    assert [path.read_bytes()[:4] for path in build(tmp_path)] == [b"%PDF"] * 3


def page_of(tree):
    from albert_study import explore

    folder = write_run(tree, "key-clusters", 0, {"pearson": 0.5}, task="stsb", headline="pearson")
    folder.parent.rename(folder.parents[1] / EVIL)
    return explore.build(tree).read_text(encoding="utf-8")


def test_the_page_to_explore_loads_nothing_has_every_run_and_no_name_writes_markup(tree):
    pytest.importorskip("altair")
    page = page_of(tree)
    markup = re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", page, flags=re.DOTALL)
    addresses = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)|url\(([^)]*)\)|@import (\S+)""", markup)
    assert not [address for found in addresses for address in found if re.match(r"\w+:|//", address)]
    assert "default-src 'none'" in markup
    assert "<img" not in markup
    (charts,) = re.findall(r"for \(const chart of (\[.*\])\) \{", page)
    records = [path.relative_to(tree).as_posix() for path in tree.glob("results/runs/*/*/*/*/seed-*/result.json")]
    layers = [layer["data"].get("values", ()) for layer in json.loads(charts)[0]["layer"]]
    values = [value for layer in layers for value in layer if "record" in value]
    assert {value["record"] for value in values} == set(records)
    assert all(value["commit"] == "0123456789" for value in values)
    assert EVIL in {value["name"] for value in values}


def test_the_repositorys_own_page_holds_all_its_runs_below_two_megabytes():
    text = (ROOT / "report" / "results.html").read_text(encoding="utf-8")
    assert len(text) < 2_000_000
    listed = [name for name in (ROOT / "results/records.txt").read_text().split() if not name.endswith(".csv")]
    assert not [path for path in listed if f'"{path}/result.json"' not in text]
    (charts,) = re.findall(r"for \(const chart of (\[.*\])\) \{", text)
    drawn = pytest.importorskip("vl_convert").vegalite_to_svg(json.loads(charts)[0])
    links = re.findall(r'href="[^"]*[.][.]/(results[^"]*)/result.json"', drawn)
    assert links
    assert set(links) <= set(listed)


def test_points_of_the_page_that_have_nearly_the_same_colour_have_other_shapes():
    text = (ROOT / "report" / "results.html").read_text(encoding="utf-8")
    (charts,) = re.findall(r"for \(const chart of (\[.*\])\) \{", text)
    for chart in json.loads(charts):
        marks = next(layer["encoding"] for layer in chart["layer"] if "color" in layer["encoding"])
        looks = [
            zip(*(marks[of]["scale"][part] for part in ("domain", "range")), strict=True) for of in ("color", "shape")
        ]
        colours, shapes = map(dict, looks)
        for one, other in itertools.combinations(colours, 2):
            parts = [[int(colours[name][place : place + 2], 16) for place in (1, 3, 5)] for name in (one, other)]
            is_near = sum(abs(x - y) for x, y in zip(*parts, strict=True)) < 90
            assert not is_near or shapes[one] != shapes[other], (one, other)


ASKED = """<script>
const later = milliseconds => new Promise(done => setTimeout(done, milliseconds));
(async () => {
  await later(1500);
  const points = () => document.querySelectorAll("path[aria-roledescription=point]").length, told = [points()];
  const choose = (selector, value) => {
    const input = document.querySelector(selector);
    input.value = value;
    for (const event of ["input", "change"]) input.dispatchEvent(new Event(event));
  };
  choose("input[type=search]", "key-clusters");
  await later(300);
  told.push(points());
  const select = document.querySelector("select");
  choose("select", select.options[select.options.length - 1].value);
  await later(300);
  told.push(points(), select.value);
  document.title = JSON.stringify(told);
})();
</script>"""


@pytest.mark.skipif(not BROWSER, reason="no Chromium")
def test_a_browser_draws_and_chooses_without_an_error(tree, tmp_path):
    pytest.importorskip("altair")
    for path in tree.glob("results/runs/*/*/*/*/seed-*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"full_cost": 0.5}))
    asking = tmp_path / "page.html"
    asking.write_text(page_of(tree) + ASKED, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=4000", asking.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert json.loads(re.findall(r"<title>(.*?)</title>", done.stdout)[-1])[:2] == [6, 1]
