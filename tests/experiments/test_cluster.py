"""The cluster section: Slurm's notations, and what is refused because a job could not work so."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from experiments.cluster import ClusterSection, seconds

JOB = {"gpus": 0, "cpus": 1, "mem": "1G"}


@pytest.mark.parametrize(
    ("time", "wanted"),
    [
        ("90", 5400),  # minutes
        ("90:30", 5430),  # minutes:seconds
        ("24:00:00", 86400),
        ("2-00", 172800),  # days-hours
        ("1-12:30", 131400),  # 36 h 30 min
        ("1-00:00:05", 86405),
    ],
)
def test_slurms_notations_of_time(time: str, wanted: int) -> None:
    assert seconds(time) == wanted


def section(lead: int, time: str, scheduler: str = "slurm") -> ClusterSection:
    jobs = {kind: JOB | {"time": "24:00:00"} for kind in ("independent", "joint")} | {"evaluation": JOB | {"time": time}}
    return ClusterSection.model_validate({"name": "x", "scheduler": scheduler, "threads": 1, "lead": lead, **jobs})


def test_a_warning_must_come_after_the_start() -> None:
    assert section(299, "5").lead == 299
    with pytest.raises(ValidationError, match=r"lead=300 seconds is not shorter than a job's time limit \(evaluation.time=5\)"):
        section(300, "5")
    assert section(300, "5", "local").lead == 300  # nobody warns there
