"""What the task YAMLs call. lm-eval loads this file by its path; everything else is imported by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.errors import UserError
from experiments.tasks import load_prompt_set
from graft.types import Prompt
from graft.verifier import verify


def to_doc(prompt: Prompt, prompt_suffix: str, *, plain: bool) -> dict[str, Any]:
    """One item as lm-eval sees it. ``message`` is the user's turn; ``plain``, for a model without a chat template, ends its line.

    The same text as graft.retokenize.TextCodec.render, which is what the torch policy is given.
    """
    message = prompt.message + prompt_suffix + ("\n" if plain else "")
    return {"id": prompt.id, "message": message, "gold": prompt.gold, "alternatives": list(prompt.alternatives)}


def dataset(docs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Docs as the splits that lm-eval asks for."""
    from datasets import Dataset

    return {"test": Dataset.from_list([dict(d) for d in docs])}


def load(source: str, prompt_suffix: str, data_root: str | None = None, plain: bool = False, **_: Any) -> dict[str, Any]:
    """A pinned prompt set. ``data_root`` and ``plain`` come from lm-eval's ``--metadata``, which holds the model's arguments too."""
    prompts = load_prompt_set(source, data_root).prompts
    return dataset(to_doc(p, prompt_suffix, plain=plain) for p in prompts)


def process_results(doc: Mapping[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Means over all samples of one item. ``results`` holds one list: the filtered responses to the item's one request."""
    (responses,) = results
    if isinstance(responses, str):
        raise UserError(
            "only one sample per item reached the scoring; the task needs the filter take_first_k with k = repeats, as in base_yaml"
        )
    golds = (doc["gold"], *doc["alternatives"])
    verdicts = [verify(golds, response) for response in responses]
    return {
        "pass@1": sum(v.correct for v in verdicts) / len(verdicts),
        "boxed_missing": sum(v.how == "boxed missing" for v in verdicts) / len(verdicts),
        "timeout": sum(v.how == "timeout" for v in verdicts) / len(verdicts),
    }
