"""What a finished step's metrics say (names: docs/metrics.md). Shares have their counts beside them, so that sums over steps are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence as Seq
from typing import Any

from graft.exchange import Exchange
from graft.types import Group


def model_metrics(groups: Seq[Group], updates: Seq[Mapping[str, float]]) -> dict[str, Any]:
    """One model's step: everything it sampled, and its optimiser steps. Shares of nothing are None."""
    responses = [r for g in groups for r in g.responses]
    own, peer = (sum(u[f"{kind}_tokens"] for u in updates) for kind in ("own", "peer"))
    clipped_own, clipped_peer = (sum(u.get(f"clipped_{kind}", 0.0) for u in updates) for kind in ("own", "peer"))
    return {
        "rollouts": len(responses),
        "reward_mean": sum(float(r.reward or 0) for r in responses) / len(responses),
        "all_fail_share": sum(g.all_fail for g in groups) / len(groups),
        "all_pass_share": sum(g.all_pass for g in groups) / len(groups),
        "response_tokens_mean": sum(len(r.ids) for r in responses) / len(responses),
        "truncated_share": sum(r.finish_reason == "length" for r in responses) / len(responses),
        "verdicts": dict(sorted(Counter(r.verdict.how for r in responses if r.verdict).items())),
        "minibatches": len(updates),
        "loss_mean": sum(u["loss"] for u in updates) / max(len(updates), 1),
        "grad_norm_mean": sum(u["grad_norm"] for u in updates) / max(len(updates), 1),
        "nonfinite_minibatches": int(sum(u["nonfinite"] for u in updates)),
        "own_tokens": int(own),
        "peer_tokens": int(peer),
        "clipped_own_tokens": int(clipped_own),
        "clipped_peer_tokens": int(clipped_peer),
        "clipped_own_share": clipped_own / own if own else None,
        "clipped_peer_share": clipped_peer / peer if peer else None,
        "kl_own_mean": sum(u["kl_own"] for u in updates if "kl_own" in u) / own if any("kl_own" in u for u in updates) else None,
    }


def logprob_mismatch(sampled: Iterable[Seq[float]], scored: Iterable[Seq[float]]) -> dict[str, Any]:
    """How far the log-probs (nats) of the same responses are apart in the sampler and in the training engine, over tokens.

    ``kl``: mean of sampler minus trainer, an estimate of KL(sampler || trainer); ``max`` and ``mean``: of the absolute difference.
    """
    pairs = [(a, b) for r, s in zip(sampled, scored, strict=True) for a, b in zip(r, s, strict=True)]
    return {
        "tokens": len(pairs),
        "mean": sum(abs(a - b) for a, b in pairs) / max(len(pairs), 1),
        "max": max((abs(a - b) for a, b in pairs), default=0.0),
        "kl": sum(a - b for a, b in pairs) / max(len(pairs), 1),
    }


def stored_metrics(model: str, logged: Seq[Group], verified: Seq[Group]) -> dict[str, Any]:
    """A stored peer's part of one step. ``disagreements``: responses whose reward in the log is not the one verified now."""
    pairs = [(a.reward, b.reward) for g, v in zip(logged, verified, strict=True) for a, b in zip(g.responses, v.responses)]
    return {
        "model": model,
        "responses": len(pairs),
        "reward_mean": sum(float(b or 0) for _, b in pairs) / len(pairs),
        "unrewarded": sum(a is None for a, _ in pairs),
        "disagreements": sum(a is not None and a != b for a, b in pairs),
    }


def exchange_metrics(moved: Exchange) -> list[dict[str, Any]]:
    """One row per ordered pair of models."""
    rows = []
    for d in moved.report.directions:
        mine = [r for r in moved.report.rows if (r.source, r.receiver) == (d.source, d.receiver)]
        weights = [r.weight for r in mine if r.weight is not None]
        rows.append(
            {
                "source": d.source,
                "receiver": d.receiver,
                "candidates": d.candidates,
                "m": d.m,
                "selected": d.selected,
                "used": d.used,
                "offered": d.offered,
                "admitted": d.admitted,
                "weight_mean": sum(weights) / len(weights) if weights else None,
                "reasons": dict(sorted(Counter(r.reason for r in mine).items())),
            }
        )
    return rows


def token_counts(groups: Seq[Group], updates: Seq[Mapping[str, float]]) -> dict[str, int]:
    """Tokens sampled and trained on, for the compute ledger."""
    return {
        "sampled": sum(len(r.ids) for g in groups for r in g.responses),
        "trained": int(sum(u["own_tokens"] + u["peer_tokens"] for u in updates)),
    }
