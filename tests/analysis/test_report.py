"""The report page: every number leads to its runs, nothing from a record is markup, equal records give equal bytes, links resolve."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest

from analysis.__main__ import main
from analysis.report import gather

from .conftest import Runs, share

PROJECT = Path(__file__).resolve().parents[2]
# Tables and figures that the two benchmarks of the hand-made runs can fill.
SPECS = ("table2", "table5", "figure_ablation")
HOSTILE = "<script>alert('x')</script> & \"quoted\""


@dataclass
class Dom(HTMLParser):
    """Elements in order as (tag, attributes), and the text of each table cell with its link."""

    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    rows: list[list[tuple[str, str]]] = field(default_factory=list)

    def __post_init__(self):
        super().__init__(convert_charrefs=True)
        self._cell = False

    def handle_starttag(self, tag, attrs):
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append(("", ""))
            self._cell = True
        if tag == "a" and self._cell:
            self.rows[-1][-1] = ("", attributes["href"])

    def handle_endtag(self, tag):
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self._cell:
            text, href = self.rows[-1][-1]
            self.rows[-1][-1] = (text + data, href)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, label: str) -> list[tuple[str, str]]:
        return next(row for row in self.rows if row and row[0][0].endswith(label))


def parse(file: Path) -> Dom:
    dom = Dom()
    dom.feed(file.read_text(encoding="utf-8"))
    return dom


def copy_paper(folder: Path, names: tuple[str, ...] = SPECS) -> Path:
    shutil.copytree(PROJECT / "paper_tables", folder)
    for spec in (folder / "specs").glob("*.yaml"):
        if spec.stem not in names:
            spec.unlink()
    return folder


def report(root: Path, paper: Path, out: Path, *more: str) -> int:
    return main(["report", "--root", str(root.parent), "--paper", str(paper), "--out", str(out), *more])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> tuple[Runs, Path, Path]:
    """(runs, folder like paper_tables, the page) of GRAFT, GRPO on both models, one hostile finished run and one unfinished."""
    base = tmp_path_factory.mktemp("site")
    runs = Runs(base / "runs" / "paper")
    joint = runs.make("graft", share(3), training={"selection": "best"})
    runs.costs(joint, 3, {"exchange": 300.0}, {"tiny-smollm3": 2, "tiny-qwen3": 3})
    for model in ("smollm3-3b", "qwen3-1.7b"):
        runs.make("grpo", share(1), models=(model,), pair=None)
    runs.make("peer_first", share(2), deviations={"method.note": HOSTILE})
    runs.make("hacpo", share(2), done=False).set_status("failed", step=1, steps=3, reason=HOSTILE)
    paper = copy_paper(base / "paper_tables")
    # GRPO's and the others' ledgers are empty here, and table 5 needs the selected checkpoint of each of its runs.
    (paper / "specs" / "table5.yaml").unlink()
    assert report(runs.root, paper, base / "reports") == 0
    return runs, paper, base / "reports" / "cpu" / "index.html"


def name_of(runs: Runs, method: str) -> str:
    (found,) = (p.name for p in runs.root.iterdir() if p.name.startswith(f"{method}-1-"))
    return found


def test_every_number_links_to_the_run_that_it_rests_on(site):
    runs, _, page = site
    dom = parse(page)
    graft = f"#run-{name_of(runs, 'graft')}"
    # 3 of 4 samples of every item are correct: 75 in both evaluation runs; paper's values lead to no run of ours.
    label, ours, counted, delta, paper, _ = dom.row("GRAFT (full)")[:6]
    assert label[0].endswith("GRAFT (full)")
    assert ours == ("75.00 ± 0.00", graft)
    assert counted == ("2/2", graft)
    assert delta == ("—", "")
    assert paper == ("37.06 ± 0.67", "")
    # GRPO: 1 of 4; its difference of -50 rests on its own run and on GRAFT's.
    grpo = dom.row("GRPO, n = 8")
    assert grpo[1][0] == "25.00 ± 0.00"
    assert re.fullmatch(r"#run-grpo-tiny-smollm3-cpu-s0-[0-9a-f]{8}", grpo[1][1])
    assert grpo[3][0] == "-50.00"
    entry = next(text for text in page.read_text(encoding="utf-8").split("<li ") if text.startswith(f'id="{grpo[3][1][1:]}"'))
    assert entry.count("<a href") == 2
    assert f'href="{graft}"' in entry
    assert f'href="{grpo[1][1]}"' in entry


def test_a_run_entry_says_what_the_run_is(site):
    runs, _, page = site
    text = page.read_text(encoding="utf-8")
    directory = runs.root / name_of(runs, "graft")
    config = json.loads((directory / "run.json").read_text())
    entry = text.split(f'<section class="run" id="run-{directory.name}">')[1].split("</section>")[0]
    assert config["fingerprint"] in entry
    assert str(config["commit"]) in entry
    assert "<dt>training seed</dt><dd>0</dd>" in entry
    # 2 models, 2 benchmarks, 2 runs
    assert "Evaluation files (8 of 8)" in entry
    relative = f"../../runs/paper/{directory.name}"
    assert f'href="{relative}/"' in entry
    assert f'href="{relative}/eval/tiny-qwen3/arith-large/run1.jsonl"' in entry
    assert '<a href="#table2">table2</a>' in entry


def test_links_resolve_and_nothing_comes_from_elsewhere(site):
    _, _, page = site
    dom = parse(page)
    ids = [attributes["id"] for _, attributes in dom.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in dom.all("a")]
    inside = [href[1:] for href in links if href.startswith("#")]
    assert len(inside) > 100
    assert set(map(unquote, inside)) <= set(ids)
    files = [href for href in links if not href.startswith(("#", "data:"))]
    assert len(files) > 50
    assert [href for href in files if not (page.parent / unquote(href)).exists()] == []
    assert not any(tag in ("link", "iframe", "object") for tag, _ in dom.elements)
    sources = [attributes["src"] for _, attributes in dom.elements if "src" in attributes]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|@import|url\(", page.read_text(encoding="utf-8"))


def test_nothing_from_a_record_is_markup(site):
    _, _, page = site
    text = page.read_text(encoding="utf-8")
    assert len(parse(page).all("script")) == 1
    assert "<script>alert" not in text
    escaped = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; "
    # the reason of the failed run: in its entry and in what table 2 and the figure lack
    assert text.count(escaped + "&quot;quoted&quot;") >= 3
    assert f"method.note=&quot;{escaped}" in text


def test_page_is_accessible_in_its_structure(site):
    _, _, page = site
    dom = parse(page)
    assert dom.all("html")[0]["lang"] == "en"
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in dom.all("meta")
    levels = [int(tag[1]) for tag, _ in dom.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert all(head.get("scope") for head in dom.all("th"))
    assert len(dom.all("caption")) == len(dom.all("table")) > 5
    assert all(image["alt"] for image in dom.all("img"))


def test_costs_are_those_of_the_ledger(site):
    runs, _, page = site
    row = parse(page).row(name_of(runs, "graft"))
    # 3 steps x 300 s x 4 GPUs = 1 GPU-hour; validation 3 x 60 s x 4 = 0.2; all on record 1.2
    assert [text for text, _ in row[1:]] == [
        "done",
        "1.0000",
        "0.2000",
        "0.0000",
        "0.0000",
        "0.0000",
        "1.2000",
        "GPU-hours",
        "3",
        "1",
    ]


@pytest.mark.slow
def test_equal_records_in_any_order_give_equal_bytes(site, tmp_path: Path, monkeypatch):
    runs, paper, page = site
    monkeypatch.setattr(gather, "open_runs", lambda root, real=gather.open_runs: real(root)[::-1])
    # As deep as the first: links are relative.
    out = page.parents[1].with_name("again")
    assert report(runs.root, paper, out) == 0
    assert (out / "cpu" / "index.html").read_bytes() == page.read_bytes()


def test_without_any_run_the_page_says_what_is_missing(runs: Runs, tmp_path: Path, capsys):
    paper = copy_paper(tmp_path / "paper_tables", ("table2",))
    assert report(runs.root, paper, tmp_path / "out") == 0
    assert "No run at scale cpu under" in capsys.readouterr().err
    text = (tmp_path / "out" / "cpu" / "index.html").read_text(encoding="utf-8")
    assert "0 finished, 0 not finished" in text
    assert "make launch TABLE=table2 SCALE=cpu WAIT=1" in text
    assert "python -m experiments.train method=graft pair=1 seed=0 scale=cpu" in text
    assert report(runs.root, paper, tmp_path / "out", "--seed", "2") == 0
    text = (tmp_path / "out" / "cpu" / "index.html").read_text(encoding="utf-8")
    assert "make launch TABLE=table2 SCALE=cpu SEEDS=2 WAIT=1" in text
    assert "seed=2 scale=cpu" in text


def test_a_table_that_cannot_be_made_is_in_the_page_and_in_the_exit_code(runs: Runs, tmp_path: Path, capsys):
    runs.make("graft", share(1))
    paper = copy_paper(tmp_path / "paper_tables", ("table2", "table7"))
    assert report(runs.root, paper, tmp_path / "out") == 2  # these runs have no AIME
    assert "error: table7: " in capsys.readouterr().err
    text = (tmp_path / "out" / "cpu" / "index.html").read_text(encoding="utf-8")
    assert "0 benchmarks stand for the column aime2024" in text
    assert 'id="table2-1"' in text


def test_seeds_are_named_once(runs: Runs, tmp_path: Path, capsys):
    paper = copy_paper(tmp_path / "paper_tables", ("table2",))
    assert report(runs.root, paper, tmp_path, "--seeds", "1", "1") == 2
    assert "names one twice" in capsys.readouterr().err
