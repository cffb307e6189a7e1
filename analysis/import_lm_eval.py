"""``python -m analysis import-lm-eval <samples.jsonl ...> --model <name> --stands-for <slug>``: others' lm-eval logs as rows of ours.

A door only. Verdicts need the verifier and the prompt sets, which analysis does not import, so the work is done by a process of
its own; what it may be told is in ``python -m experiments.lm_eval_tasks.importing --help`` and docs/evaluation.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run the import with these arguments; its exit code."""
    return subprocess.run([sys.executable, "-m", "experiments.lm_eval_tasks.importing", *argv], check=False).returncode
