"""The files of the figures: sizes, embedded fonts, equal bytes, and nothing cut off, from the paper's numbers and without any run."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis import figures
from analysis.__main__ import main
from analysis.figures import style

from .conftest import Runs, share
from .test_figures import METHODS, NAMES, SPECS, costly, measured, printed  # noqa: F401  (costly is a fixture)

# In pixels at 200 dpi: column widths of 3.3 and 6.9 inches; heights are those of the panels and of the lines under them.
PRINTED_SIZES = {
    "figure1": (660, 597),
    "figure3a": (660, 674),
    "figure3b": (1380, 664),
    "figure5": (1380, 637),
    "figure_ablation": (1380, 920),
    "figure_clipping": (1380, 503),
}


def drawn(data: figures.FigureData) -> Figure:
    """As it is in the file: laid out."""
    figure = figures.FIGURES[data.spec.kind].draw(data)
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    return figure


def words(figure: Figure) -> list[Text]:
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t.get_figure() is not None]


def check_layout(figure: Figure) -> None:
    """No text below 7 pt, no panel (with its labels) cut off or on the legend or the foot."""
    assert all(text.get_fontsize() >= 7 for text in words(figure))
    apart = [x.get_window_extent() for x in (*figure.legends, *(t for t in figure.texts if t.get_text()))]
    panels = [ax.get_tightbbox() for ax in figure.axes]
    for box in (*panels, *apart):
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.width + 1
        assert box.y1 <= figure.bbox.height + 1
    for panel in panels:
        assert not any(panel.padded(-1).overlaps(other.padded(-1)) for other in apart)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "figure1" else pytest.mark.slow) for name in sorted(PRINTED_SIZES)]
)
def test_printed_figures(name: str, tmp_path: Path, capsys):
    assert main([name, "--source", "reported", "--out", str(tmp_path)]) == 0
    pdf, png, table = (tmp_path / "reported" / f"{name}.{suffix}" for suffix in ("pdf", "png", "csv"))
    assert struct.unpack(">II", png.read_bytes()[16:24]) == PRINTED_SIZES[name]
    content = pdf.read_bytes()
    assert b"/FontFile2" in content  # TrueType, embedded
    assert b"CreationDate" not in content
    with style.styled():
        again = style.render(figures.FIGURES[printed(name).spec.kind].draw(printed(name)), "pdf")
        check_layout(drawn(printed(name)))
    assert again == content
    assert table.read_text(encoding="utf-8") == figures.to_csv(printed(name))
    assert "wrote" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_figures_without_any_run_say_so(name: str, runs: Runs):
    data = measured(name, runs)
    assert all(p.y is None and p.todo for p in data.points if p.source == "runs")
    with style.styled():
        figure = drawn(data)
        check_layout(figure)
    shown = " ".join(t.get_text() for t in words(figure)).lower()
    assert "no run" in shown or "no finished" in shown
    assert "scale cpu: small stand-in models" in shown


@pytest.mark.parametrize("name", ["figure3a", "figure3b", "figure5"])
def test_figures_with_some_runs(name: str, costly: Runs):  # noqa: F811
    with style.styled():
        figure = drawn(measured(name, costly))
        check_layout(figure)
    shown = " ".join(t.get_text() for t in words(figure))
    assert "GPU-hours" in shown
    assert "Without a point (no finished run)" in shown
    assert "(for qwen3-1.7b)" in shown or "tiny-qwen3 stands for qwen3-1.7b" in shown.replace("\n", " ")


def test_a_changed_run_changes_its_point_and_no_other(costly: Runs):  # noqa: F811
    before = {p.series: p for p in measured("figure3a", costly).points}
    record = next(r for r in figures_records(costly) if r.config["cell"]["method"] == "graft")
    rows = costly.read(record, "tiny-qwen3", "arith-large", 0)
    costly.write(record, "tiny-qwen3", "arith-large", 0, [r | {"correct": True} for r in rows])
    after = {p.series: p for p in measured("figure3a", costly).points}
    assert [slug for slug in before if before[slug] != after[slug]] == ["graft"]
    # 4 instead of 3 of 4 on one of two benchmarks, in one of two runs, of one of two models: 25 / 8
    assert after["graft"].y - before["graft"].y == pytest.approx(3.125)


def figures_records(runs: Runs) -> list:
    from analysis.collect import open_runs

    return open_runs(runs.root)


def test_user_settings_change_nothing():
    import matplotlib

    with style.styled():
        plain = style.render(figures.FIGURES["pair_score_cost"].draw(printed("figure3a")), "png")
    with matplotlib.rc_context({"axes.facecolor": "yellow", "font.size": 20}):
        with style.styled():
            same = style.render(figures.FIGURES["pair_score_cost"].draw(printed("figure3a")), "png")
        assert matplotlib.rcParams["font.size"] == 20
    assert same == plain


def test_a_figure_that_cannot_be_laid_out_is_an_error():
    with style.styled():
        figure = style.new_figure(0.3, 0.2, ())
        ax = figure.add_subplot()
        ax.set(xlabel="a label that has no room at all", ylabel="a label that has no room at all")
        with pytest.raises(UserWarning, match="constrained_layout not applied"):
            style.render(figure, "png")


def test_every_series_of_a_figure_has_a_look_of_its_own():
    for name in NAMES:
        looks = style.looks(list(figures.load_spec(name, SPECS).labels))
        if len(looks) <= 8:
            assert len({(x.marker, x.line) for x in looks.values()}) == len(looks), name
    assert len({(x.color, x.marker) for x in style.SPARE}) == len(style.SPARE)
    # beside GRPO (black circles) and GRAFT (red): not the blue circles, not the red squares
    assert style.looks(["grpo_n8", "full", "wo_floor"])["wo_floor"] == style.SPARE[2]


def test_command_prints_and_refuses(runs: Runs, capsys):
    runs.make("graft", share(1))
    root = ["--root", str(runs.root.parent), "--experiment", runs.root.name, "--methods", str(METHODS)]
    assert main(["figure_ablation", *root, "--format", "csv"]) == 0
    assert capsys.readouterr().out == figures.to_csv(measured("figure_ablation", runs))
    assert main(["figure1", *root, "--format", "tex"]) == 2
    assert "has no LaTeX form" in capsys.readouterr().err
    assert main(["figure4", "--source", "reported"]) == 2
    assert "prints no number of this figure" in capsys.readouterr().err


@pytest.mark.slow
def test_equal_bytes_in_other_processes(tmp_path: Path):
    outs = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        command = [sys.executable, "-m", "analysis", "figure3b", "--source", "reported", "--format", "csv", "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True, cwd=SPECS.parents[1], env=os.environ | {"PYTHONHASHSEED": seed})
        outs.append({p.name: p.read_bytes() for p in sorted(out.rglob("*.*"))})
    assert outs[0] == outs[1]
    assert set(outs[0]) == {"figure3b.pdf", "figure3b.png", "figure3b.csv"}
