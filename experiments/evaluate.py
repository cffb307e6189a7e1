"""``python -m experiments.evaluate run=<dir>`` completes a trained run's evaluation; ``model=<hf dir or name>`` evaluates that model.

A finished evaluation is counted again and reused; files that are not whole are set aside and made again. ``model=`` takes a
Hugging Face directory, a model's name or a slot of the pair, and any further override (scale=, data=, ...); its record is a run of
method ``base``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.cli import existing_dir, run_hydra
from experiments.config import load_config, override, resolve
from experiments.errors import UserError
from experiments.files import read_json
from experiments.job import finish, options_from_json
from experiments.progress import Display
from experiments.run_record import RunRecord
from experiments.train import freeze


def evaluate_run(path: Path) -> None:
    from experiments.evaluation import set_aside_damaged

    record = RunRecord.open(existing_dir(str(path), "run"))
    options = options_from_json(read_json(path / "options.json") | {"evaluate": True})
    if record.config["recipe"]["method"]["name"] != "base" and not (path / "selected.json").exists():
        raise UserError(
            f"{path} has not finished training. Run experiments.train with its recipe first; it continues where it stopped."
        )
    with Display() as display:
        with record.lock():
            for file in set_aside_damaged(record):
                display.say(f"{file} is not whole; kept as {file.name}.damaged and evaluated again")
        finish(record, options, display)


def task(overrides: Sequence[str]) -> None:
    runs = [o.partition("=")[2] for o in overrides if o.startswith("+run=")]
    if runs:
        evaluate_run(Path(runs[0]))
        return
    model = next((o.partition("=")[2] for o in overrides if o.startswith("model=")), None)
    if model is None:
        raise UserError("say what to evaluate: run=<run directory> or model=<Hugging Face directory or model name>")
    rest = [o for o in overrides if not o.startswith(("model=", "method="))]
    if Path(model).is_dir():
        config = load_config(["method=base", *rest])
        name = Path(model).resolve().name
        # A directory named like one of the pair's models takes that model's place; two models of one name would be refused.
        slot = next((s for s in config.pair.models if config.scale.slots[s].name == name), config.pair.models[0])
        key = next(k for k, m in config.scale.models.items() if m.stands_for == slot)
        rest += [override(f"scale.models.{key}.source", model), override(f"scale.models.{key}.name", name)]
        model = slot
    plans, options = resolve(["method=base", *rest, f"model={model}"])
    with Display() as display:
        for plan in plans:
            finish(freeze(plan, options), options, display)


def main() -> int:
    # `run` is no key of the configuration, so it reaches Hydra as an addition.
    sys.argv = [f"+{a}" if a.startswith("run=") else a for a in sys.argv]
    return run_hydra(task)


if __name__ == "__main__":
    sys.exit(main())
