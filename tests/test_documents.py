"""Report, poster, summary, the page to explore and the figures: made of today's results, and of the promised size."""

import json
import re
import shutil

import pytest

from albert_study.report import DOCUMENTS, write_texts
from checkouts import ROOT, committed


@pytest.fixture
def documents(tmp_path):
    """What report and page are made of. What is not committed, such as study mini's results, counts not."""
    for name in committed():
        if re.fullmatch(r"(results|figures|report|studies)/.*\.(csv|json|svg|typ|bib|yaml|html|parquet)", name):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_report_poster_and_summary_are_made_of_todays_results(documents):
    """`make report` after the results have changed."""
    expected = write_texts(documents)
    for name in DOCUMENTS:
        assert expected.encode() in (ROOT / "report" / f"{name}.pdf").read_bytes(), name


def test_the_page_to_explore_is_made_of_todays_results(documents):
    """`make site` after the results have changed."""
    explore = pytest.importorskip("albert_study.explore")
    _, filled = explore.page(documents)
    assert f'content="{filled["fingerprint"]}"' in (ROOT / "report" / "results.html").read_text(encoding="utf-8")


def test_poster_and_summary_have_one_page_and_the_report_six_before_its_appendix(documents):
    typst = pytest.importorskip("typst")
    write_texts(documents)
    for name in ("poster", "summary"):
        pages = typst.compile(str(documents / f"report/{name}.typ"), root=str(documents), format="svg")
        assert isinstance(pages, bytes), name  # a list where there are several
    report, asked = str(documents / "report/report.typ"), {"field": "value", "one": True, "root": str(documents)}
    assert json.loads(typst.query(report, "<last-page>", **asked)) <= 6


def in_plain(text):
    return " ".join(re.sub(r"[*`\\]", "", text).split())


def test_the_answer_is_the_same_in_readme_report_poster_and_summary_and_the_abstract_is_short():
    """The documents show `answer`, which stands in shared.typ."""
    sources = {name: (ROOT / f"report/{name}.typ").read_text() for name in ("shared", *DOCUMENTS)}
    (answer,) = re.findall(r"#let answer = \[(.*?)\]\n", sources["shared"], re.DOTALL)
    assert in_plain(answer) in in_plain((ROOT / "README.md").read_text())
    assert all("#answer" in sources[name] for name in DOCUMENTS)
    (abstract,) = re.findall(r"#block\(.*?\)\[\s*#set[^\n]*\n(.*?)\] <abstract>", sources["report"], re.DOTALL)
    words = in_plain(abstract.replace("#answer", answer)).split()
    assert len(words) <= 120
    assert len([word for word in words if re.match(r"\(?\d", word)]) <= 10


@pytest.mark.parametrize("path", sorted((ROOT / "figures").glob("*.svg")), ids=lambda path: path.stem)
def test_a_figure_is_not_wider_than_the_reports_page(path):
    """A wider one would be shrunk there, and its type with it."""
    (width,) = re.findall(r'<svg[^>]* width="([\d.]+)pt"', path.read_text())
    assert float(width) <= 168 / 25.4 * 72
