"""Rows over training seeds: n counts seeds, a missing seed is never averaged away, a run without seeds has no spread."""

from __future__ import annotations

import pytest

from analysis.seeds import SeedRow


def test_mean_and_sample_std_over_seeds():
    # values 1, 2, 6: mean 3, deviations -2 -1 3, squares 4 + 1 + 9 = 14, / (3 - 1) = 7
    mean, std = SeedRow("1", "a", "full", {0: 1.0, 1: 2.0, 2: 6.0}).mean_std
    assert mean == 3.0
    assert std == pytest.approx(7**0.5)


def test_missing_seed_leaves_no_mean():
    assert SeedRow("1", "a", "full", {0: 1.0, 1: None}).mean_std is None


def test_one_run_under_every_seed_has_no_spread():
    assert SeedRow("1", "a", "base", {0: 5.0, 1: 5.0}, seeded=False).mean_std == (5.0, None)
