"""What the repository promises about itself: one address and version, documented names, clean notebooks; results/ holds
records that today's library reads, no folder of a machine, one name for one method."""

import ast
import csv
import json
import re
import subprocess
import sys
import tomllib
from functools import reduce
from itertools import chain
from pathlib import Path

import pandas as pd
import papermill
import pytest
import yaml
from nbconvert import PythonExporter
from packaging.requirements import Requirement

import albert_lsh
from albert_lsh import attention
from albert_lsh.interface import todays_settings
from albert_lsh.predict import main
from albert_lsh.record import RETIRED, SCHEMA, read_result
from albert_lsh.run import Run
from albert_study.names import scale_of
from albert_study.records import MADE_AGAIN, with_todays_name
from albert_study.show import Table, form
from checkouts import ROOT, committed

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *(ROOT / path for path in committed("results/*.md"))]
PLAIN = Table(["", "a"], [["row", "1"]], "note")


def test_environment_yml_says_what_pyproject_says():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert sorted(pip) == sorted(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["study"])
    assert f"python {PROJECT['requires-python']}" in conda


def test_lock_file_has_every_package_in_its_range():
    locked = pinned("requirements.lock")
    for line in [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked[requirement.name.lower()]), line


def pinned(path):
    """The version of each package that a file names."""
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / path).read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in lines}


@pytest.mark.parametrize("name", ["packages", "torch"])
def test_packages_with_hashes_have_the_versions_of_the_lock_file(name):
    """What only another system or Python needs is in no lock file of this machine."""
    path = f"tools/locked/{name}.txt"
    locked, hashed = pinned("requirements.lock"), pinned(path)
    assert {k: v for k, v in hashed.items() if locked.get(k, v) != v} == {}
    assert len(hashed.keys() & locked.keys()) > 5
    assert (ROOT / path).read_text().count("--hash=sha256:") > len(hashed)


def test_ranges_admit_what_colab_preinstalls():
    """Colab of July and August 2026 (googlecolab/backend-info); a range without these would replace them there."""
    colab = "torch 2.11.0, transformers 5.13.1, transformers 5.15.0, huggingface-hub 1.23.0, huggingface-hub 1.27.0, "
    colab += "datasets 4.0.0, pandas 2.2.2, pandas 2.2.3, scikit-learn 1.6.1"
    ranges = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    assert all(ranges[name].contains(version) for name, version in (line.split() for line in colab.split(", ")))
    assert PROJECT["requires-python"] == ">=3.11,<3.14"


@pytest.fixture(scope="module")
def refresh():
    sys.path.insert(0, str(ROOT / "tools"))
    import refresh

    return refresh


@pytest.fixture(scope="module")
def refreshed(refresh):
    return refresh.refreshed()


def test_address_and_tables_are_carried_to_where_they_are_shown(refresh, refreshed):
    assert not [path.name for path, text in refreshed.items() if text != path.read_text()], "run `make refresh`"
    command = ["git", "-C", str(ROOT), "grep", "-l", refresh.address().split("//")[1], "--", ":!results"]
    holding = set(subprocess.run(command, capture_output=True, text=True).stdout.split())
    assert holding <= {"pyproject.toml", *(str(path.relative_to(ROOT)) for path in refreshed)}


def test_another_address_takes_the_place_of_the_old_one_everywhere(refresh, monkeypatch):
    urls, ours = {"Repository": "https://github.com/own/copy"}, refresh.address().split("//")[1]
    monkeypatch.setitem(refresh.PROJECT["project"], "urls", urls)
    monkeypatch.setitem(refresh.PROJECT["tool"], "albert-lsh", {"address-is-placeholder": False})
    refreshed = refresh.refreshed()
    assert not [path.name for path, text in refreshed.items() if ours in text]
    assert "git clone https://github.com/own/copy && cd copy" in refreshed[ROOT / "README.md"]
    assert not [path.name for path, text in refreshed.items() if "a placeholder" in text.lower()]


def test_a_new_place_leaves_the_text_up_to_the_next_table(refresh):
    tables = dict.fromkeys(("one", "two"), PLAIN)
    old = refresh.page("<!-- table: two -->\n\nafter\n", tables)
    text = refresh.page(f"<!-- table: one -->\n\nbetween\n\n{old}", tables)
    assert [text.count(part) for part in ("<!-- table: one -->", "between", "<!-- table: two -->", "after")] == [1] * 4
    assert refresh.page(text, tables) == text


def test_a_table_cannot_write_markdown_or_end_its_place(refresh):
    """What stands in a table is gone from the page when it is gone from the table."""
    evil = "x | y `z` <img src=x> & [a](b)\n<!-- end of table -->"
    text = "before\n\n<!-- table: one -->\n\nafter\n"
    clean = refresh.page(text, {"one": PLAIN})
    dirty = refresh.page(clean, {"one": Table(["", evil], [[evil, evil]] * 2, evil)})
    place = dirty.split("<!-- table: one -->")[1].split("<!-- end of table -->")[0]
    assert len(place) > len(evil) * 5
    assert not any(mark in place for mark in ("<", ">", "`z`", "[a]"))
    assert len({line.count("|") for line in place.splitlines() if line.startswith("|")}) == 1
    assert refresh.page(dirty, {"one": PLAIN}) == clean
    with pytest.raises(KeyError, match="one"):
        refresh.page(text, {})


def headings(page):
    """The anchors of a page's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in lines}


def test_pages_are_reached_from_readme_and_link_to_what_there_is():
    links = [(page, *link) for page in PAGES for link in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text())]
    for page, name, anchor in links:
        if "://" not in name:
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name}: {name}"
            assert not anchor or anchor in headings(target), f"{page.name}: {name}#{anchor}"
    from_readme = {name for page, name, _ in links if page.name == "README.md"}
    assert {f"docs/{page.name}" for page in DOCS} <= from_readme


def test_pages_are_short():
    """Words of docs/ with their tables; what is long is generated beside them, such as results/tables/."""
    words = {page.name: len(page.read_text().split()) for page in DOCS}
    assert sum(words.values()) <= 15_000
    assert words["claims.md"] <= 1_500
    assert words["original.md"] <= 900
    assert (ROOT / "README.md").stat().st_size <= 4_500


def test_every_parameter_of_a_run_has_its_meaning(refresh):
    assert not [name for name, _, meaning in refresh.run_options().rows if not meaning]


def test_results_tables_have_no_page_that_is_not_made_any_more(refresh, refreshed):
    made = {str(path.relative_to(ROOT)) for path in refreshed if refresh.TABLES in path.parents}
    assert made == set(committed("results/tables/*.md"))


def test_differences_in_the_text_are_those_of_the_tables():
    """Somebody types them, and tables change when seeds are added."""
    number, typed, ends = r"([+-]\d+\.\d+)", set(), ("difference", "low", "high")
    for page in (ROOT / "README.md", *DOCS):
        text = page.read_text()
        if page.name != "claims.md":  # whose table somebody types
            text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
        typed |= set(re.findall(rf"{number}\s+\({number}\s+to\s+{number}", text))
    tables = pd.concat(map(pd.read_csv, (ROOT / "results/tables").glob("*-differences.csv")))
    digits = [scale_of(*line)[1] for line in tables[["task", "metric"]].itertuples(index=False)]
    rows = tables.assign(how=[f"+{each}" for each in digits]).to_dict("records")
    for path in (ROOT / "results/tables").glob("*equivalence.csv"):
        rows += pd.read_csv(path).assign(how="+2").to_dict("records")
    computed = {tuple(form(row[name], row["how"]) for name in ends) for row in rows}
    assert typed
    assert typed <= computed, typed - computed


def test_every_claim_has_its_evidence_its_reach_and_what_would_refute_it():
    page = (ROOT / "docs/claims.md").read_text()
    claims = re.findall(r"^\| \*\*(\d+)\. (.*) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in claims] == [*range(1, len(claims) + 1)]
    for _, row in claims:
        assert [bool(cell.strip()) for cell in row.split(" | ")] == [True] * 4, row
        assert re.search(r"\d", row.split(" | ")[1]), row
    assert claims


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_sources_are_clean_and_short_and_papermill_sees_every_parameter(path):
    """It does not see those whose comment has an equals sign (papermill#864)."""
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert len(notebook["cells"]) <= 25
    assert "Open in Colab" in "".join(notebook["cells"][0]["source"])
    (tagged,) = (cell for cell in code if "parameters" in cell["metadata"].get("tags", []))
    statements = ast.parse("".join(tagged["source"])).body
    for statement in statements:
        assert isinstance(statement, ast.Assign)
        ast.literal_eval(statement.value)
    names = {target.id for statement in statements for target in statement.targets}
    assert len(names) <= 20
    assert set(papermill.inspect_notebook(str(path))) == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_define_no_function_and_are_scripts_too(path):
    text, resources = PythonExporter().from_filename(str(path))
    assert resources["output_extension"] == ".py"
    assert (
        json.loads(path.read_text())["metadata"]["language_info"]["file_extension"] == ".py"
    )  # else it is taken for text
    nodes = [*ast.walk(ast.parse(text))]
    assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in nodes)
    assert "display" not in {node.id for node in nodes if isinstance(node, ast.Name)}  # no name of Python's


def test_executed_notebooks_show_no_text_of_others():
    """Data sets have their own licences; cells that show what stands in them are kept without what they showed."""
    kept = committed(
        "results/runs/*notebook.ipynb", "results/runs/*fidelity-*.ipynb", "results/no-training-second/*.ipynb"
    )
    assert kept
    for path in kept:
        cells = json.loads((ROOT / path).read_text())["cells"]
        shown = [cell["outputs"] for cell in cells if "examples" in cell["metadata"].get("tags", [])]
        assert shown, path
        assert not any(shown), path


def test_api_pages_show_every_public_name_with_its_docstring(tmp_path):
    """`make docs`; nothing of them is fetched from a network."""
    command = [sys.executable, str(ROOT / "tools" / "api.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    for page, names in {"albert_lsh": albert_lsh.__all__, "albert_lsh/attention": albert_lsh.attention.__all__}.items():
        text = (tmp_path / f"{page}.html").read_text(encoding="utf-8")
        assert not re.search(r"""src=["'](?:https?:)?//|<link [^>]*href=["'](?:https?:)?//""", text)
        sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL))
        for name in set(names) - {"attention", "ATTENTIONS", "GROUPS"}:  # a page of its own, and tables
            assert 'class="docstring"' in sections[name], name


def test_one_version_is_everywhere(capsys, monkeypatch):
    monkeypatch.setattr("importlib.metadata.Distribution.from_name", None)  # PYTHONPATH alone will do
    with pytest.raises(SystemExit, match="^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"albert-lsh {albert_lsh.__version__}\n"
    assert f"\nversion: {albert_lsh.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "albert_lsh.__version__"}


# What results/ holds ----------------------------------------------------------------------------------------------

KEPT = [path for path in committed("results") if not path.startswith("results/archive/")]  # that is read
RECORDS = [path for path in KEPT if path.endswith("/result.json")]
TABLES = [path for path in KEPT if path.endswith(".csv")]
FOLDER = re.compile(r"/(?:home|work|root|tmp|content|usr|opt|mnt|srv|private|Users)/")
NO_PATH = re.compile(r'"image/\w+": (?:"[^"]*"|\[[^\]]*\])|https?://[^\s"]+')  # pictures, encoded, and addresses
# Measured beside our attentions.
PEERS = {
    "reformer-pytorch",
    "hyper",
    "linear",
    "product of 2048 x 2048",
    "fused kernel",
    "truncation",
    "LSG",
    "Longformer",
    "sdpa",
    "Nyströmformer",
    "YOSO",
}
LEFT = {"far_field", "window", "block_size"}  # settings of `key-clusters` that left the code; rows that had them stay
MADE_AGAIN_BELOW = tuple(f"results/{name}" for name in MADE_AGAIN)  # of records, with the names of today
# Parameters added later, with what all runs had before.
BEFORE = {"residual": True, "pad_to_max_length": False, "attention_dropout": None}


def rows():
    for path in TABLES:
        with (ROOT / path).open(newline="") as file:
            yield from ((path, row) for row in csv.DictReader(file))


def settings(row):
    """A row's settings of its attention; tables have them as JSON or as Python shows a dictionary."""
    text = row.get("settings") or row.get("attention_settings") or "{}"
    names = {"'": '"', "None": "null", "True": "true", "False": "false"}
    return json.loads(re.sub("|".join(names), lambda name: names[name[0]], text))


def test_records_are_read_have_one_schema_and_attentions_that_can_be_had_again():
    assert RECORDS
    for path in RECORDS:
        record = json.loads((ROOT / path).read_text())
        parameters, defaults = record["parameters"], Run.defaults()
        assert (record["status"], record["schema"]) in [("complete", 3), ("complete", SCHEMA)], path
        for name in record.get("inferred", ()):  # of records that were converted
            reduce(dict.__getitem__, name.split("."), record)
        today = read_result(ROOT / path)
        name, settings = today["parameters"]["attention"], parameters["attention_settings"]
        place = parameters["output_dir"]
        moved = place.startswith("results/runs/axes/")
        assert moved or moved_today(place, parameters, name) == str(Path(path).parent), path
        kept = {setting: value for setting, value in todays_settings(settings).items() if setting not in LEFT}
        assert kept.items() <= attention.check(name, kept).items(), path
        if path.startswith("results/runs/"):
            lacking = defaults.keys() - {*parameters, "results_root"}
            assert all(defaults[parameter] is BEFORE.get(parameter) for parameter in lacking), path  # added later
            assert today["metrics"] == record["metrics"], path
            arm = Path(path).parts[-3]  # one named after an attention has it
            assert name == arm or arm not in attention.names(), path


def moved_today(place, parameters, name):
    """Where a run is whose parameters say where it was made: its arm and its model are called as they are today."""
    old = parameters["attention"]
    place = place.replace(f"/nano-{old}", f"/nano-{name}")
    return re.sub(rf"/{re.escape(old)}(?=[/-]|$)", f"/{name}", place)


def test_no_file_names_a_folder_of_a_machine():
    assert KEPT
    assert not [path for path in KEPT if FOLDER.search(NO_PATH.sub("", (ROOT / path).read_text(errors="ignore")))]


def test_attentions_in_tables_are_known_and_their_settings_can_be_asked_for_again():
    names, columns = set(), ("attention", "case", "what")
    for path, row in rows():
        today = row if path.startswith(MADE_AGAIN_BELOW) else with_todays_name(row)
        names |= {(path, today[column].split(",")[0]) for column in columns if today.get(column)}
        name, chosen = today.get("attention"), todays_settings(settings(row))
        if name in attention.names() and not any(chosen.get(setting) for setting in LEFT):
            attention.check(name, chosen)
    assert names
    # version 1 of `key-clusters`; `lsh` that counted a key in each round; what lost in benchmarks/ideas.py, or is there
    left = {RETIRED, "plain lsh", "mass-budget", "node-means"}
    assert not {(path, name) for path, name in names if name not in {*attention.names(), *PEERS, *left}}
