"""Tests of paired differences, and what many of them together are worth. Pure; the Generator is the caller's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EXACT_UP_TO = 20  # differences: 2**19 sums of floats, 4 MB
DRAWS = 100_000
CHUNK = 2_000_000  # signs held at a time by the Monte Carlo test
# Two-sided 95 % quantiles of Student's t for 1, 2, ... 30 degrees of freedom (any table of the distribution).
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class SignFlip:
    """``p``: two-sided. ``smallest_p``: what p would be if all differences had one sign; no data of this size can go below.

    ``exact`` False: p comes from ``flips`` random sign vectors and moves a little with the Generator.
    """

    mean: float
    p: float
    smallest_p: float
    exact: bool
    flips: int


def sign_flip(differences: np.ndarray, rng: np.random.Generator, *, draws: int = DRAWS) -> SignFlip:
    """Sign-flip test (Fisher's paired permutation test) that ``[n]`` paired differences are symmetric about 0.

    The statistic is |mean|. Up to 20 differences that are not 0 all sign vectors are counted, and p = share of those whose |mean| is at
    least the observed one (the observed vector is among them, so p is never 0; smallest 2 / 2**n). Above, ``draws`` random vectors, and
    p = (1 + as extreme) / (1 + draws), which never understates (Phipson & Smyth 2010). Differences of 0 stay in the mean and
    have no sign to flip; with nothing else p = 1. ValueError for NaN or no difference.
    """
    array = np.asarray(differences, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError("the sign-flip test needs a non-empty array [n] of finite differences")
    signed = np.abs(array[array != 0])
    n = len(signed)
    if n == 0:
        return SignFlip(0.0, 1.0, 1.0, True, 1)
    # Sums in different orders differ in their last bits; a tie must count as one.
    observed = abs(float(array.sum())) - 1e-12 * float(signed.sum())
    if n <= EXACT_UP_TO:
        sums = np.array([signed[0]])  # the first sign is fixed: the other half of the vectors are mirror images
        for value in signed[1:]:
            sums = np.concatenate([sums + value, sums - value])
        p = float((np.abs(sums) >= observed).mean())
        return SignFlip(float(array.mean()), p, 2.0 ** (1 - n), True, 2**n)
    extreme = _extreme(signed, observed, rng, draws)
    return SignFlip(float(array.mean()), (1 + extreme) / (1 + draws), max(2.0 ** (1 - n), 1 / (1 + draws)), False, draws)


def _extreme(signed: np.ndarray, observed: float, rng: np.random.Generator, draws: int) -> int:
    """How many of ``draws`` random sign vectors give at least the observed |sum|."""
    extreme, left = 0, draws
    while left:
        now = min(left, max(1, CHUNK // len(signed)))
        signs = 2.0 * rng.integers(2, size=(now, len(signed)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ signed) >= observed).sum())
        left -= now
    return extreme


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's (1979) step-down correction: ``[tests]`` of p-values -> ``[tests]`` adjusted, in the same order.

    Sorted ascending, the k-th (from 0) of m becomes the greatest of (m - j) p_j over j <= k, at most 1. Rejecting adjusted values
    under alpha keeps the chance of any false rejection under alpha, whatever the dependence. ValueError outside 0..1 or for NaN.
    """
    array = np.asarray(p, dtype=np.float64)
    if array.ndim != 1 or not ((array >= 0) & (array <= 1)).all():
        raise ValueError("Holm's correction needs an array [tests] of p-values in 0..1")
    order = np.argsort(array, kind="stable")
    stepped = np.maximum.accumulate(array[order] * np.arange(len(array), 0, -1))
    adjusted = np.empty_like(array)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def t_95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t. Above 30 degrees of freedom that of 30 (2.042), at most 4 % too wide."""
    if degrees < 1:
        raise ValueError("no degree of freedom: one run has no spread")
    return T_95[min(degrees, len(T_95)) - 1]
