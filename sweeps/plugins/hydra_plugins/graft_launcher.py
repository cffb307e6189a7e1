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

from experiments.compose import key_of


class SweepLauncher(Launcher):
    """``cluster``: the cluster group's option unless the command line chooses one; the rest as for ``python -m sweeps launch``."""

    def __init__(self, cluster: str, jobs: int = 0, wait: bool = False, retry_failed: bool = False, require_clean: bool = False):
        self.cluster = cluster
        self.options: dict[str, Any] = {"jobs": jobs, "wait": wait, "retry": retry_failed, "require_clean": require_clean}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's task function is not used: the jobs run ``experiments.job`` on frozen records."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Freeze and launch all jobs as one. Leaves with the worst exit code of the children."""
        from experiments.config import load_config, resolve
        from experiments.progress import Display
        from sweeps.launch import How, launch

        jobs = [self._with_cluster(list(job)) for job in job_overrides]
        cluster = load_config(jobs[0]).cluster
        runs = {plan.name: (plan, options) for job in jobs for plans, options in [resolve(job)] for plan in plans}
        if any(options.dry_run for _, options in runs.values()):
            print("\n".join(f"{o.experiment_root / name}" for name, (_, o) in runs.items()))
        else:
            with Display() as display:
                code = launch(runs, How(cluster, **self.options), display)
            if code:
                raise SystemExit(code)
        returns = [JobReturn(overrides=job, status=JobStatus.COMPLETED) for job in jobs]
        for one in returns:
            one.return_value = None
        return returns

    def _with_cluster(self, job: list[str]) -> list[str]:
        chosen = any(key_of(o) == "cluster" for o in job)
        return job if chosen else [f"cluster={self.cluster}", *job]
