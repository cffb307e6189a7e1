"""Hydra's composition of ``sweeps/conf``, done once for what many runs share.

A composition takes about 65 ms. A paper's sweep asks for hundreds that differ in their method, pair and seed, so the sections that
stand alone are read once each and put in; the result equals the whole composition (tests/experiments/test_compose.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONF = Path(__file__).resolve().parent.parent / "sweeps" / "conf"
GROUPS = ("method", "pair", "scale", "data", "policy", "cluster")
# Sections that nothing else reads and whose files normally change nothing else; checked for each composition.
SEPARATE = ("method", "pair", "cluster")
SEED = re.compile(r"seed=(0|[1-9][0-9]{0,8})")


def override(key: str, value: Any) -> str:
    """One Hydra override. Strings are quoted, so commas, equal signs, braces and spaces stay inside the value."""
    return f"{key}={literal(value)}"


def literal(value: Any) -> str:
    """A value in Hydra's grammar, lists and mappings with all that is in them.

    Hydra reads a backslash before a quote, and OmegaConf one before ``${``, as an escape; any other is a backslash.
    """
    if isinstance(value, str):
        plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
        escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), plain)
        return f"'{escaped}'"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


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


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration under Hydra overrides (numbers quoted already). Hydra's errors pass through.

    Sections that stand alone are read once and put in; whatever is not plainly so is left to one whole composition.
    """
    own: dict[str, list[str]] = {section: [] for section in SEPARATE}
    rest, seed = [], {}
    for o in overrides:
        if SEED.fullmatch(o):
            seed = {"seed": int(o.partition("=")[2])}
        else:
            own.get(key_of(o).partition(".")[0], rest).append(o)
    parts = {section: _alone(section, tuple(given)) for section, given in own.items() if given}
    if None in parts.values():
        return dict(_whole(tuple(overrides)))
    return {**_whole(tuple(rest)), **parts, **seed}


@lru_cache(maxsize=512)
def _alone(section: str, given: tuple[str, ...]) -> Mapping[str, Any] | None:
    """One section from its file and values set in it; None where only Hydra knows what they mean.

    That is: the file reaches beyond its section (a defaults list, a package), the section's file is not chosen, a key is added or
    removed, or unknown, or a value is no plain one.
    """
    choices = [o for o in given if key_of(o) == section]
    values = [o for o in given if key_of(o) != section]
    if not choices or any(o[0] in "+~" for o in given):
        return None
    chosen = OverridesParser.create().parse_override(choices[-1]).value()
    file = CONF / section / f"{chosen}.yaml"
    if not isinstance(chosen, str) or not file.is_file():
        return None
    text = file.read_text(encoding="utf-8")
    made = OmegaConf.create(text)
    if not isinstance(made, DictConfig) or "defaults" in made or "@package" in text or "${" in text:
        return None
    OmegaConf.set_struct(made, True)
    for parsed in OverridesParser.create().parse_overrides(values):
        key = parsed.key_or_group.partition(".")[2]
        value = parsed.value()
        if parsed.is_sweep_override() or OmegaConf.select(made, key, default=_ABSENT) is _ABSENT or "${" in str(value):
            return None
        try:
            OmegaConf.update(made, key, value, merge=True)
        except OmegaConfBaseException:  # Hydra says it better
            return None
    return OmegaConf.to_container(made, throw_on_missing=True)  # type: ignore[return-value]


_ABSENT = object()
