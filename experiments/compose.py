"""Hydra's composition of ``sweeps/conf``, done once for what many runs share.

A composition takes about 65 ms. A paper's sweep asks for hundreds that differ in their method, pair and seed, so the parts that
stand alone are composed once each and put together; the result equals the whole composition (tests/experiments/test_compose.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parent.parent / "sweeps" / "conf"
GROUPS = ("method", "pair", "scale", "data", "policy", "cluster")
# Sections that nothing else reads and whose files normally change nothing else; checked for each composition.
SEPARATE = ("method", "pair", "cluster")
SEED = re.compile(r"seed=(0|[1-9][0-9]{0,8})")


def override(key: str, value: Any) -> str:
    """One Hydra override. Strings are quoted, so commas, equal signs, braces and spaces stay inside the value."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"{key}='{escaped}'"
    return f"{key}={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"


def quote_numbers(overrides: Sequence[str]) -> list[str]:
    """``pair=1,2`` -> ``pair='1','2'``: Hydra reads a bare number as an int and then refuses it as the name of a group's option.

    ``group=`` is another word for ``pair=``: a group may have more than two models.
    """
    quoted = []
    for o in overrides:
        key, equals, value = o.partition("=")
        key = "pair" if key == "group" else key
        parts = value.split(",")
        if key in GROUPS and equals and any(p.isdigit() for p in parts):
            value = ",".join(f"'{p}'" if p.isdigit() else p for p in parts)
        quoted.append(f"{key}{equals}{value}")
    return quoted


def key_of(given: str) -> str:
    """The dotted key of an override, without Hydra's ``+``, ``++`` and ``~``."""
    return given.lstrip("+~").partition("=")[0]


@lru_cache(maxsize=512)
def _whole(overrides: tuple[str, ...]) -> Mapping[str, Any]:
    """One composition by Hydra, as plain containers. Callers do not change it."""
    if GlobalHydra.instance().is_initialized():
        raw = hydra_compose("config", overrides=list(overrides))
    else:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            raw = hydra_compose("config", overrides=list(overrides))
    return OmegaConf.to_container(raw, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def _without(composed: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {k: v for k, v in composed.items() if k != section}


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration under Hydra overrides (numbers quoted already). Hydra's errors pass through.

    Falls back to one whole composition where a section's file reaches beyond its section.
    """
    own: dict[str, list[str]] = {section: [] for section in SEPARATE}
    rest, seed = [], None
    for o in overrides:
        section = key_of(o).partition(".")[0]
        if SEED.fullmatch(o):
            seed = int(o.partition("=")[2])
        else:
            own.get(section, rest).append(o)
    base = _whole(tuple(rest))
    parts = dict(base)
    plain = _whole(())
    for section, given in own.items():
        if not given:
            continue
        alone = _whole(tuple(given))
        if _without(alone, section) != _without(plain, section):
            return dict(_whole(tuple(overrides)))
        parts[section] = alone[section]
    return parts if seed is None else parts | {"seed": seed}
