"""Generated prompt sets: right answers, no leak of held-out numbers, pinned contents."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from experiments import tasks
from experiments.errors import UserError
from experiments.tasks import PINS, PromptSet, arithmetic, load_prompt_set
from experiments.tasks.arithmetic import FAMILIES, OPERATIONS, held_out, message, results, solution, triples
from graft.types import Prompt
from graft.verifier import verify

BENCHMARKS = tuple(s for s in PINS if s not in ("arith-train", "arith-validation"))
HAND_WORKED = {  # family: (operands, intermediate, final), worked from the wording by hand
    "cards": ((8, 7, 3), 15, 12),
    "bus": ((9, 4, 2), 5, 7),
    "pages": ((1, 2, 9), 3, 12),
    "pens": ((3, 4, 5), 12, 17),
    "jars": ((6, 5, 8), 30, 22),
    "pies": ((2, 3, 4), 5, 20),
    "eggs": ((9, 2, 6), 7, 42),
    "desks": ((2, 5, 9), 10, 90),
    "tank": ((9, 3, 5), 6, 1),
    "score": ((4, 9, 6), 13, 7),
    "coins": ((7, 8, 1), 56, 57),
    "lift": ((5, 5, 9), 0, 9),
}


def operands(prompt: Prompt) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", prompt.message))


@pytest.fixture(autouse=True)
def fresh_cache():
    load_prompt_set.cache_clear()
    yield
    load_prompt_set.cache_clear()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_families_mean_what_their_wording_says(family):
    operands, first, final = HAND_WORKED[family.name]
    assert results(family.ops, operands) == (first, final)
    assert solution(family.ops, operands).endswith(f" = {final}. The answer is \\boxed{{{final}}}.")


def test_solution_text_and_its_verdict():
    text = solution(("+", "-"), (8, 7, 3))
    assert text == " First 8 + 7 = 15. Then 15 - 3 = 12. The answer is \\boxed{12}."
    assert verify("12", text).correct
    assert not verify("13", text).correct


def test_results_outside_0_to_99_are_no_problem():
    assert results(("-", "+"), (3, 4, 9)) is None  # 3 - 4 is negative, though the final 8 is not
    assert results(("*", "*"), (5, 5, 4)) is None  # 100
    with pytest.raises(ValueError, match="leaves"):
        solution(("*", "*"), (5, 5, 4))


def test_families_cover_all_pairs_of_operations_and_differ_in_wording():
    assert {f.ops for f in FAMILIES} == set(arithmetic.OP_PAIRS)
    assert len({f.wording for f in FAMILIES}) == len({f.name for f in FAMILIES}) == len(FAMILIES) == 12


@pytest.mark.parametrize("source", PINS)
def test_every_generated_prompt_is_right(source):
    families = {f.name: f for f in FAMILIES}
    for prompt in load_prompt_set(source).prompts:
        a, b, c = operands(prompt)
        family = families[prompt.tags[0]]
        first = OPERATIONS[family.ops[0]](a, b)
        final = OPERATIONS[family.ops[1]](first, c)
        assert prompt.gold == str(final)
        assert 0 <= first <= 99
        assert 0 <= final <= 99
        assert message(family, (a, b, c)) in prompt.message


@pytest.mark.parametrize("source", PINS)
def test_sizes_and_balance(source):
    prompts = load_prompt_set(source).prompts
    counts = Counter(p.tags[0] for p in prompts)
    assert len(prompts) == PINS[source][0]
    assert max(counts.values()) - min(counts.values()) <= 1
    if source == "arith-train":
        assert len(prompts) == 800
        assert len(counts) == len(FAMILIES)


def test_training_never_sees_a_benchmark_triple():
    for source in ("arith-train", "arith-validation"):
        assert not any(held_out(operands(p)) for p in load_prompt_set(source).prompts)
    for source in BENCHMARKS:
        assert all(held_out(operands(p)) for p in load_prompt_set(source).prompts)


def test_ids_and_messages_are_unique_and_sets_do_not_overlap():
    prompts = [p for source in PINS for p in load_prompt_set(source).prompts]
    assert len({p.id for p in prompts}) == len(prompts)
    for source in PINS:
        messages = [p.message for p in load_prompt_set(source).prompts]
        assert len(set(messages)) == len(messages)
    seen = {p.message for p in load_prompt_set("arith-train").prompts}
    assert not seen & {p.message for s in PINS if s != "arith-train" for p in load_prompt_set(s).prompts}


def test_reserved_triples_and_the_others_are_everything():
    every = triples(("+", "+"), arithmetic.DIGITS, reserved=None)
    kept = [triples(("+", "+"), arithmetic.DIGITS, reserved=r) for r in (True, False)]
    assert len(every) == 729
    assert sorted(kept[0] + kept[1]) == sorted(every)
    assert kept[0]


def test_the_harder_benchmarks_are_hard_in_the_stated_way():
    assert {operands(p)[0] for p in load_prompt_set("arith-teens").prompts} <= set(range(10, 20))
    assert all("*" in next(f for f in FAMILIES if f.name == p.tags[0]).ops for p in load_prompt_set("arith-multiply").prompts)
    assert all(p.message.startswith(arithmetic.ASIDES) for p in load_prompt_set("arith-aside").prompts)
    assert all(p.message.startswith(arithmetic.UNSEEN_ASIDES) for p in load_prompt_set("arith-unseen").prompts)
    assert not set(arithmetic.UNSEEN_ASIDES) & set(arithmetic.ASIDES)


def test_sha256_is_over_canonical_json_lines():
    prompts = (Prompt("x", "é?", "1", ("tag",)), Prompt("y", "b", "2"))
    lines = "\n".join(json.dumps([p.id, p.message, p.gold], ensure_ascii=False, separators=(",", ":")) for p in prompts)
    assert PromptSet.of("s", prompts).sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_a_changed_generator_is_refused(monkeypatch):
    changed = list(arithmetic.train())
    changed[5] = Prompt(changed[5].id, changed[5].message, "98")
    monkeypatch.setitem(arithmetic.SETS, "arith-train", lambda: iter(changed))
    with pytest.raises(UserError, match="arith-train is not the pinned one"):
        load_prompt_set("arith-train")


def test_twice_the_same_id_is_refused():
    with pytest.raises(UserError, match="'x' occurs twice"):
        PromptSet.of("s", (Prompt("x", "a", "1"), Prompt("x", "b", "2")))


def test_unknown_set_lists_the_known_ones():
    with pytest.raises(UserError, match=r"arith-train.*math500"):
        load_prompt_set("arith-nope")


def test_a_recipe_notices_other_contents():
    described = tasks.describe_prompt_set("arith-heldout", None)
    assert tasks.load_pinned(described, None).name == "arith-heldout"
    with pytest.raises(UserError, match="contents differ"):
        tasks.load_pinned({**described, "sha256": "0" * 64}, None)


def test_tasks_load_without_torch_and_are_the_same_in_another_process():
    code = (
        "import sys; from experiments.tasks import PINS, load_prompt_set; [load_prompt_set(s) for s in PINS]; "
        "import experiments.tiny; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONHASHSEED": "7"})
