"""``python -m experiments.estimate``: memory and time of a run before it runs, by formulas (docs/estimate.md).

shapes -> setting -> memory, timing -> report. Everything but ``__main__`` is pure; numbers of models, GPUs and assumptions are data
(models.yaml, gpus.yaml, assumptions.yaml). All results are estimates that no GPU has confirmed.
"""
