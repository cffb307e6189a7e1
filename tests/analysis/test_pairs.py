"""Tables of several pairs and of several training seeds on a small record set: numbers by hand, and what they depend on."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis import pairs, stability
from analysis.__main__ import main
from analysis.collect import open_runs
from analysis.layout import pairs_csv, pairs_page
from analysis.tables import Cell
from analysis.writers import to_latex, to_markdown
from experiments.run_record import RunRecord, UserError

from .conftest import BENCHMARKS, Runs, share, write_spec

A, B, C = "smollm3-3b", "qwen3-1.7b", "octothinker-3b"
DUO: dict[str, Any] = {
    "kind": "pairs",
    "title": "Test",
    "caption": "Caption.",
    "pairs": {"1": [A, B], "3": [A, C]},
    "reference": "grpo_n8",
    "decimals": 2,
    "columns": {"math500": "MATH500", "amc23": "AMC23", "average": "average"},
    "groups": {"alone": "Alone", "joint": "Joint"},
    "marks": {"row": "graft", "above": {"†": ["grpo_n16"], "‡": ["grpo_n16", "grpo_n32"]}, "note": "What marks mean."},
    "rows": [
        {"slug": "grpo_n8", "group": "alone", "label": "GRPO", "method": "grpo"},
        *(
            {
                "slug": f"grpo_n{n}",
                "group": "alone",
                "label": f"GRPO {n}",
                "method": "grpo",
                "deviations": {"method.n": n},
                "compare": False,
            }
            for n in (16, 32)
        ),
        {"slug": "graft", "group": "joint", "label": "GRAFT", "method": "graft"},
    ],
}
SPREAD = {k: v for k, v in DUO.items() if k != "marks"} | {
    "kind": "stability",
    "pairs": {"1": [A, B]},
    "seeds": [0, 1, 2],
    "rows": [DUO["rows"][0], DUO["rows"][3]],
}


@pytest.fixture
def folder(specs: Path) -> Path:
    write_spec(specs, "duo", DUO)
    write_spec(specs, "spread", SPREAD)
    return specs


@pytest.fixture
def records(runs: Runs) -> list[RunRecord]:
    """Everything of A and of pair 1's GRAFT; nothing with n = 32, of B alone, or of C alone."""
    alone = {"models": (A,), "pair": None}
    runs.make("grpo", share(1), **alone)
    runs.make("grpo", share(2), deviations={"method.n": 16}, **alone)
    runs.make("graft", lambda m, b, run, i, sample: sample < (1 if b == "arith-large" else 2 + run))
    runs.make("graft", share(4), models=(A, C), pair="3")
    return open_runs(runs.root)


def build(folder: Path, methods: Path, records: list[RunRecord]) -> pairs.PairsTable:
    return pairs.from_runs(pairs.load_spec("duo", folder), records, scale="cpu", seed=0, methods=methods)


def cell(table: pairs.PairsTable, pair: str, slug: str, receiver: str, column: str) -> Cell:
    block = next(t for t in table.tables if t.spec.pair == pair)
    return next(row for row in block.rows if row.spec.slug == slug).cells[receiver, column]


def test_blocks_by_hand(records: list[RunRecord], folder: Path, methods: Path):
    table = build(folder, methods, records)
    # GRPO of A: 1 of 4 everywhere -> 25 in both of its pairs, one run
    assert [cell(table, p, "grpo_n8", A, "average").mean for p in ("1", "3")] == [25.0, 25.0]
    # GRAFT of pair 1: arith-heldout 2 of 4, then 3 of 4 -> 50 and 75: mean 62.5, deviations 12.5, std sqrt(2 x 156.25) = 17.677670;
    # arith-large 1 of 4 -> 25 twice; averages 37.5 and 50: 43.75, std sqrt(2 x 39.0625) = 8.838835; minus 25 -> 18.75
    math500, amc23, average = (cell(table, "1", "graft", A, c) for c in ("math500", "amc23", "average"))
    assert (math500.mean, amc23.mean, average.mean, average.delta) == (62.5, 25.0, 43.75, 18.75)
    assert (math500.std, average.std) == pytest.approx((17.677670, 8.838835), abs=1e-6)
    # bold against GRPO's 25: alone on MATH500 and the average, a tie on AMC23; n = 16 (50 everywhere) is not ranked
    assert [c.best for c in (math500, amc23, average)] == [True, True, True]
    assert [cell(table, "1", "grpo_n8", A, c).best for c in ("math500", "amc23", "average")] == [False, True, False]
    # above n = 16's 50 only on MATH500; n = 32 has no run, so nothing is above it
    assert [c.mark for c in (math500, amc23, average)] == ["†", "", ""]
    # pair 3: 4 of 4 -> 100, 75 above GRPO
    other = cell(table, "3", "graft", A, "average")
    assert (other.mean, other.delta, other.best, other.mark) == (100.0, 75.0, True, "†")
    # B and C have no GRPO run: their GRAFT has nothing to be subtracted from, better than, or above
    for pair, receiver in (("1", B), ("3", C)):
        lone = cell(table, pair, "graft", receiver, "average")
        assert (lone.state, lone.delta, lone.best, lone.mark) == ("whole", None, False, "")


def test_missing_rows_name_pair_receivers_and_command(records: list[RunRecord], folder: Path, methods: Path):
    text = to_markdown(pairs_page(build(folder, methods, records)))
    command = "python -m experiments.train method=grpo pair=3 seed=0 scale=cpu"
    assert f"- grpo_n8, pair 3 (octothinker-3b): `{command}`" in text
    assert f"- grpo_n32, pair 3 (smollm3-3b, octothinker-3b): `{command} method.n=32`" in text
    assert "- Pair 1: std is exactly 0: grpo_n8, smollm3-3b, MATH500, AMC23, average" in text
    assert text.count("- What marks mean.") == 1


def test_page_has_a_part_per_receiver_and_pair_in_the_papers_order(records: list[RunRecord], folder: Path, methods: Path):
    page = pairs_page(build(folder, methods, records))
    assert [part.title for part in page.parts] == [
        "Pair 1: tiny-smollm3 (for smollm3-3b) with tiny-qwen3 (for qwen3-1.7b)",
        "Pair 3: tiny-smollm3 (for smollm3-3b) with tiny-octothinker (for octothinker-3b)",
        "Pair 1: tiny-qwen3 (for qwen3-1.7b) with tiny-smollm3 (for smollm3-3b)",
        "Pair 3: tiny-octothinker (for octothinker-3b) with tiny-smollm3 (for smollm3-3b)",
    ]
    assert "| GRAFT | **62.50**† ± 17.68 | **25.00** ± 0.00 | **43.75** ± 8.84 | 2/2 | +18.75 |" in to_markdown(page)
    assert r"GRAFT & \textbf{62.50}$^{\dagger}$ $\pm$ 17.68 & \textbf{25.00} $\pm$ 0.00" in to_latex(page)


def test_csv_names_pair_and_peer(records: list[RunRecord], folder: Path, methods: Path):
    rows = list(csv.DictReader(io.StringIO(pairs_csv(build(folder, methods, records)))))
    assert len(rows) == 2 * 4 * 2 * 3  # pairs, rows, receivers, columns
    by = {(x["pair"], x["row"], x["receiver"], x["benchmark"]): x for x in rows}
    line = by["3", "graft", A, "average"]
    assert (line["mean"], line["std"], line["n"], line["N"], line["delta"], line["peer"]) == ("100.0", "0.0", "2", "2", "75.0", C)


def spread(folder: Path, methods: Path, records: list[RunRecord]) -> pairs.PairsTable:
    return stability.from_runs(pairs.load_spec("spread", folder), records, scale="cpu", seed=0, methods=methods)


def seeded(runs: Runs, *, last_seed: int = 2) -> list[RunRecord]:
    """GRPO of A: 1, 2, 1 of 4 correct for seeds 0, 1, 2; GRAFT: 3, 3, 4 of 4."""
    for seed, (grpo, graft) in enumerate([(1, 3), (2, 3), (1, 4)]):
        runs.make("grpo", share(grpo), models=(A,), pair=None, cell={"seed": seed})
        if seed <= last_seed:
            runs.make("graft", share(graft), cell={"seed": seed})
    return open_runs(runs.root)


def test_spread_over_seeds_by_hand(runs: Runs, folder: Path, methods: Path):
    table = spread(folder, methods, seeded(runs))
    grpo, graft = (cell(table, "1", slug, A, "average") for slug in ("grpo_n8", "graft"))
    # 25, 50, 25: mean 100 / 3; deviations -25/3, 50/3, -25/3: squares sum to 3750 / 9; / (3 - 1) = 208.333; sqrt = 14.433757
    assert (grpo.mean, grpo.std, grpo.n, grpo.N) == (pytest.approx(100 / 3), pytest.approx(14.433757, abs=1e-6), 3, 3)
    # 75, 75, 100: mean 250 / 3, the same std; difference 150 / 3 = 50
    assert (graft.mean, graft.std, graft.delta) == pytest.approx((250 / 3, 14.433757, 50.0), abs=1e-6)
    assert (grpo.best, graft.best) == (False, True)
    notes = "\n".join(table.notes)
    assert "sample std (n-1) over 3 TRAINING runs (seeds 0, 1, 2)" in notes
    assert "ONE checkpoint" not in notes
    assert "Training seed 0, 1, 2." in notes


def test_a_missing_seed_is_marked_and_not_ranked(runs: Runs, folder: Path, methods: Path):
    table = spread(folder, methods, seeded(runs, last_seed=1))
    graft = cell(table, "1", "graft", A, "average")
    # 75 and 75 of the two seeds that are there
    assert (graft.state, graft.mean, graft.std, graft.n, graft.N) == ("short", 75.0, 0.0, 2, 3)
    assert (graft.delta, graft.best) == (None, False)
    text = to_markdown(pairs_page(table))
    assert "| GRAFT | 75.00 ± 0.00 § | 75.00 ± 0.00 § | 75.00 ± 0.00 § | 2/3 | — |" in text
    command = "python -m experiments.train method=graft pair=1 seed=2 scale=cpu"
    assert f"- graft, seed 2, pair 1 (smollm3-3b, qwen3-1.7b): `{command}`" in text
    # B has no GRPO run for any seed
    lone = cell(table, "1", "grpo_n8", B, "average")
    assert (lone.state, lone.mean, lone.n, lone.N) == ("missing", None, 0, 3)


def shuffle_rows(runs: Runs, records: list[RunRecord], seed: int) -> None:
    """Every file's rows in another order, and the files written in another order."""
    rng = random.Random(seed)
    files = [file for record in records for file in record.path.glob("eval/*/*/run*.jsonl")]
    rng.shuffle(files)
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        rng.shuffle(lines)
        file.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("seed", range(3))
def test_order_of_files_and_rows_changes_nothing(runs: Runs, records: list[RunRecord], folder: Path, methods: Path, seed: int):
    before = build(folder, methods, records)
    shuffle_rows(runs, records, seed)
    shuffled = random.Random(seed).sample(records, len(records))
    assert shuffled != records
    after = build(folder, methods, shuffled)
    assert after == before
    assert to_markdown(pairs_page(after)) == to_markdown(pairs_page(before))
    seeds_before = spread(folder, methods, records)
    assert spread(folder, methods, shuffled) == seeds_before


def numbers(table: pairs.PairsTable) -> dict[tuple[str, str, str, str, str], str]:
    """(pair, row, receiver, column, measured quantity) -> value"""
    rows = csv.DictReader(io.StringIO(pairs_csv(table)))
    return {
        (x["pair"], x["row"], x["receiver"], x["benchmark"], k): x[k] for x in rows for k in ("mean", "std", "n", "N", "delta")
    }


# The row that is changed: (method, pair, model, benchmark), and the cells that depend on it
MUTATIONS: list[tuple[tuple[str, str | None, str, str], set[tuple[str, str, str, str]]]] = [
    # A row of pair 1's GRAFT counts for its own column and the average, of its own receiver and pair.
    (("graft", "1", "tiny-smollm3", "arith-heldout"), {("1", "graft", A, "math500"), ("1", "graft", A, "average")}),
    (("graft", "3", "tiny-octothinker", "arith-large"), {("3", "graft", C, "amc23"), ("3", "graft", C, "average")}),
    # GRPO of A stands in both pairs of A; every difference of A in these columns is to it.
    (
        ("grpo", None, "tiny-smollm3", "arith-heldout"),
        {(p, "grpo_n8", A, c) for p in ("1", "3") for c in ("math500", "average")},
    ),
]


@pytest.mark.parametrize(("where", "cells"), MUTATIONS)
@pytest.mark.parametrize("line", [0, 2])
def test_one_row_changes_what_depends_on_it(
    runs: Runs, records: list[RunRecord], folder: Path, methods: Path, where: tuple, cells: set, line: int
):
    before = numbers(build(folder, methods, records))
    method, pair, model, benchmark = where
    record = next(
        r
        for r in records
        if (r.config["cell"]["method"], r.config["cell"]["pair"]) == (method, pair) and not r.config["deviations"]
    )
    rows = runs.read(record, model, benchmark, 1)
    rows[line]["correct"] = not rows[line]["correct"]
    runs.write(record, model, benchmark, 1, rows)
    after = numbers(build(folder, methods, open_runs(runs.root)))
    changed = {key for key in before if before[key] != after[key]}
    expected = {(*c, k) for c in cells for k in ("mean", "std")}
    others = ("grpo_n16", "graft") if method == "grpo" else ()
    expected |= {(p, row, x, c, "delta") for (p, _, x, c) in cells for row in others}
    # GRAFT of A has a difference; that of C has none, because GRPO of C was not run
    expected |= {(*c, "delta") for c in cells if method == "graft" and c[2] == A}
    assert changed == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(pairs=["1", "3"]), "pairs map each pair to its two receivers"),
        (lambda s: s.update(pairs={"1": [A, A]}), "pairs map each pair to its two receivers"),
        (lambda s: s.update(seeds=[0, 1]), "kind stability, and no other, has seeds"),
        (lambda s: s.update(kind="stability"), "kind stability, and no other, has seeds"),
        (
            lambda s: s.update(kind="stability", seeds=[0], rows=[*s["rows"], s["rows"][0] | {"slug": "base", "seed": 0}]),
            "a row that is optional or has a seed of its own",
        ),
        (lambda s: s["marks"].update(row="nobody"), "marks name rows that the table does not have: nobody"),
        (lambda s: s["marks"].pop("note"), r"keys \['note'\] are not given"),
        (lambda s: s.update(reported_file="table1_main.csv"), "spread is not given"),
    ],
)
def test_bad_specs_are_refused(folder: Path, change: Callable[[dict], Any], message: str):
    import copy

    spec = copy.deepcopy(DUO)
    change(spec)
    write_spec(folder, "bad", spec)
    with pytest.raises(UserError, match=message):
        pairs.load_spec("bad", folder)


def reported(folder: Path, *lines: str) -> None:
    text = "pair,updated_policy,peer_policy,method,benchmark,mean,std,delta\n" + "\n".join(lines) + "\n"
    (folder.parent / "reported" / "duo.csv").write_text(text)


def test_reported_values_of_a_model_alone_stand_in_all_its_pairs(folder: Path):
    spec = DUO | {"reported_file": "duo.csv", "spread": "two", "rows": [DUO["rows"][0], DUO["rows"][3]]}
    spec = {k: v for k, v in spec.items() if k != "marks"} | {"columns": {"average": "average"}}
    write_spec(folder, "printed", spec)
    alone = [f",{x},,grpo_n8,avg,30.00,0.50," for x in (A, B, C)]
    joint = [f"{p},{x},{y},graft,avg,3{p}.00,0.50,{p}.00" for p, pair in DUO["pairs"].items() for x, y in (pair, pair[::-1])]
    reported(folder, *alone, *joint)
    table = pairs.from_reported(pairs.load_spec("printed", folder))
    for pair in ("1", "3"):
        assert cell(table, pair, "grpo_n8", A, "average").reported_mean == 30.0
        graft = cell(table, pair, "graft", A, "average")
        assert (graft.reported_mean, graft.reported_delta) == (30.0 + int(pair), float(pair))
        # no rule for bold is given, so none is invented
        assert not graft.best
    reported(folder, *alone, *joint, f"2,{B},{C},graft,avg,1,1,")
    with pytest.raises(UserError, match="pairs and receivers that the table does not have"):
        pairs.load_spec("printed", folder)
    reported(folder, *alone, *joint, joint[0])
    with pytest.raises(UserError, match="is given twice"):
        pairs.load_spec("printed", folder)
    reported(folder, *alone, *joint[1:])
    with pytest.raises(UserError, match="do not list the same cells"):
        pairs.load_spec("printed", folder)


def test_command_writes_all_formats(records: list[RunRecord], runs: Runs, folder: Path, methods: Path, tmp_path: Path, capsys):
    argv = ["--root", str(runs.root.parent), "--specs", str(folder), "--methods", str(methods), "--out", str(tmp_path / "out")]
    for name in ("duo", "spread"):
        assert main([name, *argv]) == 0
        assert "43.75" in capsys.readouterr().out
        assert {p.name for p in (tmp_path / "out" / "cpu").glob(f"{name}.*")} == {f"{name}.{s}" for s in ("md", "tex", "csv")}


def test_benchmarks_of_the_records_are_those_of_the_columns():
    assert [slot for _, slot, _ in BENCHMARKS] == [c for c in DUO["columns"] if c != "average"]


def test_a_spread_names_the_runs_of_all_its_seeds(runs: Runs, folder: Path, methods: Path):
    table = spread(folder, methods, seeded(runs))
    found = cell(table, "1", "graft", A, "average").runs
    assert [Path(run).name.rsplit("-", 1)[0] for run in found] == ["graft-1-cpu-s0", "graft-1-cpu-s1", "graft-1-cpu-s2"]
