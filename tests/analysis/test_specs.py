"""The committed specs: every one loads, and every value the paper printed stands in exactly one printed cell."""

from __future__ import annotations

import csv
import filecmp
import io
import shlex
from collections import Counter
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.kinds import KINDS, kind_of
from analysis.layout import to_csv, to_page
from analysis.spec import RowSpec, load_spec, read_spec
from analysis.tables import from_reported, from_runs
from analysis.todo import config_key, train_command, why_no_run
from sweeps import cells as sweep_cells

PROJECT = Path(__file__).resolve().parents[2]
SPECS, REPORTED = PROJECT / "paper_tables" / "specs", PROJECT / "paper_tables" / "reported"
METHODS = PROJECT / "sweeps" / "conf" / "method"
SHARED = PROJECT.parent / "shared" / "paper" / "reported"
# Specs of a kind that analysis does not have are for the launcher alone.
NAMES = sorted(p.stem for p in SPECS.glob("*.yaml") if kind_of(p.stem, SPECS) in KINDS)
BENCHMARKS = ["math500", "aime2024", "aime2025", "amc23", "minerva", "average"]


def reported(name: str) -> list[dict[str, str]]:
    with open(REPORTED / name, encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


@pytest.mark.parametrize("name", NAMES)
def test_every_spec_loads_and_names_every_row_without_a_run(name: str, tmp_path: Path, capsys):
    assert main([name, "--root", str(tmp_path), "--methods", str(METHODS), "--format", "md"]) == 0
    text = capsys.readouterr().out
    rows = [row for row in read_spec(name, SPECS)[1]["rows"] if not row.get("optional")]
    available = [row for row in rows if (METHODS / f"{row['method']}.yaml").is_file()]
    assert available
    spec = read_spec(name, SPECS)[1]
    for row in available:
        for pair in spec.get("pairs") or [spec["pair"]]:
            for seed in spec.get("seeds") or [0]:
                of_pair = f", pair {pair}" if "pairs" in spec else ""
                of_seed = f", seed {seed}" if "seeds" in spec else ""
                receivers = ", ".join(spec["pairs"][pair] if "pairs" in spec else spec["receivers"])
                command = f"python -m experiments.train method={row['method']} pair={pair} seed={seed} scale=cpu"
                assert f"- {row['slug']}{of_seed}{of_pair} ({receivers}): `{command}" in text
    lacking = [row["slug"] for row in rows if row not in available]
    assert ("Not available in this version" in text) == bool(lacking)


@pytest.mark.parametrize(("name", "rows"), [("table7", 13), ("table8", 8)])
def test_every_reported_cell_is_in_exactly_one_printed_cell(name: str, rows: int):
    spec = load_spec(name, SPECS)
    table = from_reported(spec)
    lines = reported(spec.reported_file)
    assert len(lines) == len(spec.reported) == rows * 2 * 6
    assert list(spec.columns) == BENCHMARKS
    by_key = {(x["row"], x["receiver"], x["benchmark"]): x for x in csv.DictReader(io.StringIO(to_csv(table)))}
    assert len(by_key) == len(lines)
    for line in lines:
        benchmark = "average" if line["benchmark"] == "avg" else line["benchmark"]
        cell = by_key[line["variant"], line["receiver"], benchmark]
        for key in ("mean", "std", "delta"):
            printed, ours = line[key], cell[f"reported_{key}"]
            assert float(ours) == float(printed) if printed else ours == ""
    # On the printed page: the same digits as often, one part per receiver.
    page = to_page(table)
    for receiver, part in zip(spec.receivers, page.parts, strict=True):
        mine = [line for line in lines if line["receiver"] == receiver]
        items = [item.strong + item.rest for line in part.lines for item in line.items]
        expected = [f"{x['mean']} ± {x['std']}" for x in mine] + [x["delta"] or "—" for x in mine if x["benchmark"] == "avg"]
        assert Counter(i.replace("+", "") for i in items) == Counter(expected)


def test_variants_that_several_tables_print_have_one_run_and_one_value():
    tables = {name: load_spec(name, SPECS) for name in ("table2", "table7", "table8")}
    seen: dict[str, tuple] = {}
    values: dict[tuple, object] = {}
    for spec in tables.values():
        for row in spec.rows:
            run = (row.method, tuple(row.deviations.items()), row.seed)
            assert seen.setdefault(row.slug, run) == run
        for key, value in spec.reported.items():
            assert values.setdefault(key, value) == value
    assert len(set(seen.values())) == len(seen)


def test_combinations_of_table8_stand_on_the_runs_of_table2():
    spec = load_spec("table8", SPECS)
    methods = {row.slug: row.method for row in spec.rows}
    names = {x["method"]: x["variant"] for x in reported("table8_hybrid.csv")}
    assert methods[names["sgt_plus_graft_how"]] == "wo_balancing"
    assert methods[names["sgt_plus_graft_which"]] == "graft_which_sft_update"
    assert methods[names["hacpo_plus_graft_which"]] == "graft_which_hacpo_update"
    assert methods[names["graft_plus_luffy_update"]] == "graft_which_luffy_update"


def test_groups_and_thresholds_of_table7_are_those_printed():
    spec = load_spec("table7", SPECS)
    lines = reported("table7_ablation_full.csv")
    assert {(row.slug, row.group) for row in spec.rows if not row.optional} == {(x["variant"], x["group"]) for x in lines}
    printed = {x["variant"]: float(x["delta_threshold"]) for x in lines if x["variant"].startswith("delta_")}
    assert {row.slug: row.deviations["method.delta"] for row in spec.rows if row.deviations} == printed


def test_extra_baselines_show_nothing_as_the_papers(capsys):
    spec = load_spec("extra_baselines", SPECS)
    assert spec.reported_file is None
    assert {row.slug: dict(row.deviations) for row in spec.rows if row.deviations} == {
        "grpo_n16": {"method.n": 16},
        "grpo_n32": {"method.n": 32},
    }
    table = from_runs(spec, [], scale="cpu", seed=0, methods=METHODS)
    assert not any(line.second for part in to_page(table).parts for line in part.lines)
    assert main(["extra_baselines", "--source", "reported"]) == 2
    assert "not a table of the paper" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted(p.name for p in REPORTED.glob("*.csv")))
def test_reported_files_are_verbatim_copies(file: str):
    if not (SHARED / file).is_file():
        pytest.skip("the transcription is not beside this checkout")
    assert filecmp.cmp(SHARED / file, REPORTED / file, shallow=False)


def test_methods_with_a_yaml_are_missing_and_others_unavailable(tmp_path: Path):
    (tmp_path / "graft.yaml").write_text("")
    assert why_no_run(RowSpec("a", "A", "graft"), tmp_path) == "missing"
    assert why_no_run(RowSpec("a", "A", "hacpo"), tmp_path) == "unavailable"


@pytest.mark.parametrize(
    ("deviations", "arguments"),
    [
        ({"method.n": 16}, ["method.n=16"]),
        (
            {"training.learning_rate": 3e-4, "evaluation.samples": 2},
            ["scale.training.learning_rate=0.0003", "scale.evaluation.samples=2"],
        ),
        ({"training.max_steps": None, "policy.train_rows": 4}, ["scale.training.max_steps=null", "policy.train_rows=4"]),
    ],
)
def test_printed_commands_name_the_keys_that_the_launcher_names(deviations: dict, arguments: list[str]):
    command = train_command(RowSpec("a", "A", "graft", deviations=deviations), pair="1", seed=2, scale="smoke")
    assert shlex.split(command)[3:] == ["method=graft", "pair=1", "seed=2", "scale=smoke", *arguments]
    spec = {"pair": "1", "rows": [{"slug": "a", "method": "graft", "deviations": deviations}]}
    (cell,) = sweep_cells.cells(spec, scale="smoke", seed=2)
    assert [config_key(key) for key in deviations] == [o.split("=")[0] for o in cell.overrides[4:]]
