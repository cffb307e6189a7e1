"""The cost model of benchmarks/exchange.py, by hand."""

from __future__ import annotations

import pytest

from benchmarks import exchange


def test_the_share_in_flops_by_hand() -> None:
    # Per token: sampling 2, old log-probs 2, update 8, and 2 more for a tenth of them: .2 / 12.2, whatever the sizes of the models.
    assert exchange.flops_share(0.1) == pytest.approx(0.2 / 12.2)
    assert exchange.flops_share(0.0) == 0.0


def test_the_papers_step_and_the_share_of_re_tokenising() -> None:
    # 43.3 GPU-hours on 4 GPUs in 174 steps: 223.97 s. 2 x 10 % x 1,024 responses x 1,000 tokens x 2 us = .4096 s.
    assert exchange.paper_step_seconds() == pytest.approx(43.3 * 3600 / 4 / 174)
    assert exchange.text_share(0.1, 2.0) == pytest.approx(0.4096 / 223.966, rel=1e-4)
