"""The benchmarks as lm-eval tasks: our prompt, our verifier, no stop strings, 8 samples per item and every one of them scored.

One YAML per prompt set (``graft_<set>``), all on ``base_yaml``; ``hooks.py`` is what they call. ``experiments.lm_eval_run`` fills
them from a run's recipe; lm-eval's own command line finds them with ``--include_path`` (docs/evaluation.md).
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PREFIX = "graft_"
VERSION = "0.4.13"  # the lm-eval that this was written and tested against


def task_file(source: str) -> Path:
    """The YAML of a prompt set."""
    return FOLDER / f"{source}.yaml"
