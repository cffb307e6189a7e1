"""Hydra's door to the launcher: ``python -m experiments.train -m method=grpo,graft pair=1,2,3 hydra/launcher=slurm``.

Hydra takes launchers from packages named ``hydra_plugins`` only; everything here is handed on to ``sweeps.launch``. All jobs of a
sweep are composed, checked and frozen in this process, so what a queued job does is settled when it is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from experiments.errors import UserError


class SweepLauncher(Launcher):
    """``scheduler``: what the chosen cluster must have; the rest as for ``python -m sweeps launch``."""

    def __init__(
        self, scheduler: str, jobs: int = 0, wait: bool = False, retry_failed: bool = False, require_clean: bool = False
    ):
        self.scheduler = scheduler
        self.options: dict[str, Any] = {"jobs": jobs, "wait": wait, "retry": retry_failed, "require_clean": require_clean}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's task function is not used: the jobs run ``experiments.job`` on frozen records."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Freeze and launch all jobs as one. Leaves with the worst exit code of the children, where there is one."""
        from experiments.config import load_config, resolve
        from experiments.progress import Display
        from experiments.works import add_runs
        from sweeps.launch import How, launch

        configs = [load_config(job) for job in job_overrides]
        cluster = configs[0].cluster
        if cluster.scheduler != self.scheduler:
            raise UserError(
                f"hydra/launcher={self.scheduler}, but cluster={cluster.name} has scheduler {cluster.scheduler}; choose one"
            )
        # One launch has one place and one way to run; a sweep over either would be taken from its first job in silence.
        if any((c.cluster, c.experiment, c.runs_root) != (cluster, configs[0].experiment, configs[0].runs_root) for c in configs):
            raise UserError("cluster, experiment and runs_root must be the same for all jobs of a sweep; launch once for each")
        runs: dict[str, Any] = {}
        for job in job_overrides:
            add_runs(runs, *resolve(job))
        if any(options.dry_run for _, options in runs.values()):
            print("\n".join(str(options.experiment_root / name) for name, (_, options) in runs.items()))
        else:
            with Display() as display:
                code = launch(runs, How(cluster, **self.options), display)
            if code:
                raise SystemExit(code)
        return [_returned(job) for job in job_overrides]


def _returned(job: Sequence[str]) -> JobReturn:
    returned = JobReturn(overrides=job, status=JobStatus.COMPLETED)
    returned.return_value = None
    return returned
