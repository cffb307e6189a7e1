"""What the Hydra entry points share: one clear message and exit code 2 for a user's mistake, everything else as it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments.compose import CONF, quote_numbers
from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.interruption import Interrupted
from experiments.requeue import Leaving, decide, leave

LAUNCHERS = ("local", "slurm", "basic")


def run_hydra(task: Callable[[Sequence[str]], None]) -> int:
    """Run ``task(overrides)`` under Hydra (so -m, --help and launchers work) and return the exit code."""
    sys.path.append(str(CONF.parent / "plugins"))  # Hydra finds launchers in packages named hydra_plugins only
    try:
        sys.argv = [sys.argv[0], *with_cluster(quote_numbers(sys.argv[1:]))]
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing a trace and exiting with 1
    failures: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def entry(_: DictConfig) -> None:
        # Caught here: Hydra would put its own lines around the message. The other jobs of a multirun still run.
        try:
            task(list(HydraConfig.get().overrides.task))
        except UserError as e:
            print(f"error: {e}", file=sys.stderr)
            failures.append(EXIT_USER_ERROR)

    try:
        entry()
    except UserError as e:  # of a launcher
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    except Leaving as e:  # of a run; no further job of a multirun starts
        return leave(e)
    except Interrupted as e:
        return leave(Leaving(e.number, decide(e, ())))
    except (HydraException, OmegaConfBaseException) as e:
        print(f"error: configuration: {e}\n(given: {' '.join(sys.argv[1:])})", file=sys.stderr)
        return EXIT_USER_ERROR
    return max(failures, default=0)


def with_cluster(arguments: Sequence[str]) -> list[str]:
    """The command line; hydra/launcher=slurm alone means cluster=slurm, too. UserError for launchers that are not the project's."""
    chosen = [a.partition("=")[2] for a in arguments if a.partition("=")[0] == "hydra/launcher"]
    if not chosen or chosen[-1] == "basic":
        return list(arguments)
    if chosen[-1] not in LAUNCHERS:
        raise UserError(
            f"hydra/launcher={chosen[-1]} would compose the configuration on the node, when the job starts, so that an edited file "
            f"changes a queued run. Use one of {', '.join(LAUNCHERS)}."
        )
    named = any(a.startswith("cluster=") for a in arguments)
    return [*arguments] if named else [*arguments, f"cluster={chosen[-1]}"]


def existing_dir(path: str, what: str) -> Path:
    """The directory, or a UserError."""
    if not Path(path).is_dir():
        raise UserError(f"{what} {path} does not exist or is not a directory")
    return Path(path)
