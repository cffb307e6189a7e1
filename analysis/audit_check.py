"""One recomputed number against the printed one, and a named check of several of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from analysis.cells import EPSILON
from analysis.paper import half_unit

Verdict = Literal["exact", "after rounding", "does not hold", "cannot be checked"]
# Worst first: a check is as good as its worst comparison.
ORDER: tuple[Verdict, ...] = ("does not hold", "cannot be checked", "after rounding", "exact")


@dataclass(frozen=True)
class Comparison:
    """One recomputed number against what was printed. ``off``: by how much it misses it."""

    what: str
    numbers: str
    verdict: Verdict
    off: float = 0.0


@dataclass(frozen=True)
class Check:
    """A named question with its comparisons; ``remark`` says what a reader should make of the answer."""

    group: str
    name: str
    comparisons: tuple[Comparison, ...]
    remark: str = ""

    @property
    def verdict(self) -> Verdict:
        return next(v for v in ORDER if any(c.verdict == v for c in self.comparisons))

    @property
    def numbers(self) -> str:
        """The comparison itself if there is one; else how many hold how, and the ones that do not (or the worst)."""
        if len(self.comparisons) == 1:
            return self.comparisons[0].numbers
        found = Counter(c.verdict for c in self.comparisons)
        text = f"{len(self.comparisons)} compared: " + ", ".join(f"{found[v]} {v}" for v in reversed(ORDER) if found[v])
        failed = [c for c in self.comparisons if c.verdict == "does not hold"]
        worst = max(self.comparisons, key=lambda c: abs(c.off))
        shown = failed or ([worst] if abs(worst.off) > EPSILON else [])
        return "; ".join([text, *(f"{c.what}: {c.numbers}" for c in shown)])


def verdict_of(computed: float, printed: str, slack: float = 0.0) -> Verdict:
    """``exact``, ``after rounding`` or ``does not hold``. ``slack``: rounding of what went in, where that is granted."""
    off = abs(computed - float(printed))
    if off <= EPSILON:
        return "exact"
    return "after rounding" if off <= half_unit(printed) + slack + EPSILON else "does not hold"


def beside(computed: float, printed: str, digits: int = 4) -> str:
    """ "0.4446 against 0.45": up to ``digits`` decimals, and no fewer than were printed."""
    least = len(printed.partition(".")[2])
    whole, _, decimals = f"{computed:.{max(digits, least)}f}".partition(".")
    kept = decimals[:least] + decimals[least:].rstrip("0")
    return f"{whole}{'.' if kept else ''}{kept} against {printed}"


def against(what: str, computed: float, printed: str, *, slack: float = 0.0, digits: int = 4) -> Comparison:
    """A recomputed number beside the printed one."""
    return Comparison(what, beside(computed, printed, digits), verdict_of(computed, printed, slack), computed - float(printed))


def at_most(what: str, value: float, limit: float, slack: float) -> Comparison:
    """``value`` <= ``limit``, up to the rounding of both."""
    verdict: Verdict = "exact" if value <= limit + EPSILON else "after rounding" if value <= limit + slack else "does not hold"
    return Comparison(what, f"{value:.3f} of at most {limit:.3f}", verdict, max(0.0, value - limit))


def unknown(what: str, why: str) -> Comparison:
    """What no printed number can settle."""
    return Comparison(what, why, "cannot be checked")
