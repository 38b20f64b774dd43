"""The page to explore: one file, that loads nothing, with every run; in a real browser where there is one."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from albert_lsh.files import repository_root
from records import write_run

pytest.importorskip("altair")
from albert_study.evidence.site import all_runs, build, packed

EVIL = """<img src=x onerror="boom()"> & 'it'"""
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def write_efficiency(root: Path) -> None:
    """Softmax and an attention on two machines, at two lengths each; lsh alone at a third."""
    rows = [
        {
            "case": case,
            "length": length,
            "pass": "forward",
            "seconds": seconds * length,
            "device": device,
            "commit": "c1",
        }
        for device, lengths in (("one", (128, 256)), ("other", (512, 1024)))
        for length in lengths
        for case, seconds in (("softmax", 2.0), ("lsh", 1.0))
    ]
    rows.append({**rows[-1], "length": 2048})
    folder = root / "results" / "efficiency"
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "time-cpu-fp32.csv", index=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Two arms with two seeds each, one of another task and name; and times."""
    root = tmp_path_factory.mktemp("tree")
    for arm, score in {"softmax": 0.9, "lsh": 0.8}.items():
        for seed in (0, 1):
            write_run(root, arm, seed, {"accuracy": score, "f1": score + seed / 100})
    folder = write_run(root, "lsh", 0, {"pearson": 0.5}, task="stsb", headline="pearson")
    folder.parent.rename(folder.parents[1] / EVIL)
    write_efficiency(root)
    return root


@pytest.fixture(scope="module")
def page(tree):
    return build(tree).read_text(encoding="utf-8")


def charts_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])["charts"]


def rows_of(chart):
    """The rows of a chart as the page's script unpacks them."""
    table = pd.DataFrame({name: [values[i] if i >= 0 else None for i in places]
                          for name, (values, places) in chart["columns"].items()})  # fmt: skip
    return table


def markup_of(page):
    return re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", page, flags=re.DOTALL)


def test_the_page_loads_nothing_and_asks_the_browser_to_see_to_it(page):
    markup = markup_of(page)
    addresses = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)|url\(([^)]*)\)|@import (\S+)""", markup)
    assert addresses
    assert not [address for found in addresses for address in found if re.match(r"\w+:|//", address)]
    assert "default-src 'none'" in markup
    assert page.count("window.vegaEmbed") == 1


def test_every_complete_run_is_in_the_table_with_its_record_and_commit(page, tree):
    records = [path.relative_to(tree).as_posix() for path in tree.glob("results/runs/*/*/*/*/seed-*/result.json")]
    assert len(records) == 5
    rows = re.search(r"<tbody>\n(.*?)\n</tbody>", page, re.DOTALL)[1].split("\n")
    assert sorted(run["record"] for run in all_runs(tree)) == sorted(records)
    assert len(rows) == 5
    assert all("0123456789</td>" in row for row in rows)


def test_the_repositorys_own_page_holds_all_its_runs_below_two_megabytes():
    root = repository_root()
    text = (root / "report" / "results.html").read_bytes()
    kept = subprocess.run(["git", "ls-files", "results"], cwd=root, capture_output=True, text=True, check=True)
    records = [path for path in kept.stdout.split() if path.endswith("/result.json")]
    assert len(text) < 2_000_000
    assert not [path for path in records if f">{path}</a>".encode() not in text]


def test_names_cannot_write_markup(page):
    assert "<img" not in markup_of(page)
    assert "&lt;img src=x onerror=&quot;boom()&quot;&gt; &amp; &#x27;it&#x27;" in page
    assert EVIL in set(rows_of(charts_of(page)["scores"])["arm"])


def test_a_multiple_is_of_softmax_on_the_same_machine_and_length(page):
    rows = rows_of(charts_of(page)["efficiency"])
    multiples = rows[(rows["arm"] == "lsh") & (rows["shown"] == "multiple of softmax's")]
    assert multiples[["tokens", "value"]].to_numpy().tolist() == [[n, 0.5] for n in (128, 256, 512, 1024)]
    assert set(rows.loc[rows["shown"] == "as measured", "tokens"]) == {128, 256, 512, 1024, 2048}


def test_missing_parts_leave_the_page_standing_and_the_same_results_give_the_same_page(tree, page, tmp_path):
    copy = shutil.copytree(tree, tmp_path / "copy")
    assert build(copy).read_text(encoding="utf-8") == page
    shutil.rmtree(copy / "results" / "efficiency")
    less = charts_of(build(copy).read_text(encoding="utf-8"))
    assert list(less) == [name for name in charts_of(page) if name != "efficiency"]


def test_packed_rows_say_where_a_value_is_missing():
    rows = pd.DataFrame({"a": ["x", None, "x"], "b": [1.5, float("nan"), 0.123456789]})
    assert packed(rows) == {"a": [["x"], [0, -1, 0]], "b": [[1.5, 0.12346], [0, -1, 1]]}


ASKED = """<script>
const later = milliseconds => new Promise(done => setTimeout(done, milliseconds));
(async () => {
  const scores = document.querySelector("[data-chart=scores]"), rows = document.querySelector("#all-runs tbody").rows;
  const points = () => scores.querySelectorAll("path[aria-roledescription=point]").length;
  await later(1500);
  const told = [document.querySelectorAll("[data-chart] svg.marks").length, points()];
  scores.querySelector("input[value=lsh]").click();
  await later(200);
  told.push(points());
  const task = scores.querySelector("select[name=task]");
  task.value = "stsb";
  task.dispatchEvent(new Event("change"));
  scores.querySelector("summary").click();
  await later(200);
  told.push(points(), scores.querySelectorAll("details tbody tr").length);
  const head = document.querySelectorAll("#all-runs th")[7];
  for (const _ of "12") {
    head.firstChild.click();
    told.push(head.ariaSort, rows[0].cells[7].textContent);
  }
  document.title = JSON.stringify(told);
})();
</script>"""


@pytest.mark.skipif(not BROWSER, reason="no Chromium")
def test_a_browser_draws_chooses_and_sorts_without_an_error(page, tmp_path):
    asking = tmp_path / "page.html"
    asking.write_text(page + ASKED, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=4000", asking.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    told = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1])
    assert told == [3, 4, 2, 1, 3, "ascending", "0.500", "descending", "0.910"]
