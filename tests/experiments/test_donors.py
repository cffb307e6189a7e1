"""Donors: which log a stored run learns from, what of it is in the fingerprint, and what a user is told when it does not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments import donors
from experiments.config import resolve
from experiments.donors import find_donor, identify, needs, note, open_donor
from experiments.errors import UserError
from experiments.import_log import main as import_main, read_log_file
from experiments.run_record import RunRecord
from graft import trajectories
from graft.types import Group, Prompt, Response, SamplingSettings

STORED = ["method=graft_stored", "pair=1", "scale=smoke"]
N = 2
IDS = (("p0", "p1"), ("p2", "p0"))
PROMPTS = [Prompt(f"p{k}", f"Question {k}?", "1") for k in range(3)]
USUAL = SamplingSettings(1.0, 1.0, 44)
RECIPE: dict[str, Any] = {
    "method": {"name": "graft_stored", "n": N},
    "training": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 44},
    "donor": {"model": "b", "log": "sha256:0", "match": "step"},
}


# ---- which donor, and the fingerprint


def test_auto_is_the_other_models_grpo_run_of_the_same_configuration() -> None:
    extra = ["seed=3", "scale.training.epochs=2", "method.n=4", "method.delta=0.7"]
    plans, options = resolve([*STORED, *extra])
    assert [p.cell["models"] for p in plans] == [["tiny-smollm3"], ["tiny-qwen3"]]
    assert [p.cell["pair"] for p in plans] == ["1", "1"]
    assert options.donor is None
    for plan, other in zip(plans, ("qwen3-1.7b", "smollm3-3b"), strict=True):
        ((donor,), _) = resolve(["method=grpo", "pair=1", "scale=smoke", *extra[:3], f"model={other}"])
        assert [need.fingerprint for need in plan.needs] == [donor.fingerprint]
        assert plan.recipe["donor"] == {"model": donor.cell["models"][0], "log": f"run:{donor.fingerprint}", "match": "step"}
        assert needs(plan.recipe) == (donor.fingerprint,)
        assert plan.needs[0].deviations == {"training.epochs": 2, "method.n": 4}
        # The donor follows from the rest, so it is no deviation of its own: tables find the row by what was asked for.
        assert plan.deviations == {"training.epochs": 2, "method.n": 4, "method.delta": 0.7}
        assert plan.name.startswith(f"graft_stored-1-{plan.cell['models'][0]}-smoke-s3-")


def test_one_receiver_and_the_plain_cell() -> None:
    (plan,), _ = resolve([*STORED, "model=qwen3-1.7b"])
    assert (plan.recipe["donor"]["model"], plan.deviations) == ("tiny-smollm3", {})
    assert resolve([*STORED, "model=qwen3-1.7b", "donor=auto", "stored_match=step"])[0][0].fingerprint == plan.fingerprint


def test_the_match_and_the_pair_are_in_the_fingerprint() -> None:
    (plain,), _ = resolve([*STORED, "model=qwen3-1.7b"])
    (matched,), _ = resolve([*STORED, "model=qwen3-1.7b", "stored_match=prompt"])
    assert matched.fingerprint != plain.fingerprint
    assert matched.deviations == {"donor.match": "prompt"}
    (other,), _ = resolve(["method=graft_stored", "pair=2", "scale=smoke", "model=qwen3-1.7b"])
    assert other.fingerprint != plain.fingerprint  # the same receiver, taught by another model


@pytest.mark.parametrize("method", ["graft", "grpo", "base"])
@pytest.mark.parametrize("key", ["donor=auto", "stored_match=prompt"])
def test_a_donor_for_a_method_that_reads_none_is_an_error(method: str, key: str) -> None:
    with pytest.raises(UserError, match=rf"{key.partition('=')[0]}: method {method} has no stored peer"):
        resolve([f"method={method}", "scale=smoke", key])


def test_auto_needs_a_pair_of_two_and_a_known_match() -> None:
    with pytest.raises(UserError, match="pair all has 3 models"):
        resolve(["method=graft_stored", "group=all", "scale=smoke"])
    with pytest.raises(UserError, match="stored_match"):
        resolve([*STORED, "stored_match=random"])


# ---- logs


def rows(batch: int, **changes: Any) -> list[dict[str, Any]]:
    """A step of a log from elsewhere."""
    return [
        {"prompt_id": q, "response": f"{q} {j}", "reward": j, "mean_logprob": -0.5, "step": batch, "finish_reason": "eos"}
        | changes
        for q in IDS[batch - 1]
        for j in range(N)
    ]


def jsonl(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if v is not None}) + "\n" for line in lines))
    return path


def native(directory: Path, *, sampling: SamplingSettings = USUAL, model: str = "b") -> Path:
    for step, ids in enumerate(IDS, 1):
        groups = tuple(
            Group(
                Prompt(q, "q", "1"),
                model,
                (1,),
                tuple(Response((7, 0), (-0.5, -0.5), f"{q} {j}", "eos", float(j)) for j in range(N)),
            )
            for q in ids
        )
        trajectories.append(directory, step, {model: groups}, trajectories.Facts(0, sampling))
    return directory


def opened(path: Path, *, logprobs: bool = True, **donor: str) -> donors.OpenDonor:
    return open_donor(RECIPE | {"donor": RECIPE["donor"] | donor}, path, IDS, PROMPTS, logprobs=logprobs)


def test_a_native_log_and_an_imported_one_give_the_same_groups(tmp_path: Path) -> None:
    one = opened(native(tmp_path / "log"))
    other = opened(jsonl(tmp_path / "b.jsonl", rows(1) + rows(2)))
    asked = [PROMPTS[2], PROMPTS[0]]
    for a, b in zip(one.groups(2, asked), other.groups(2, asked), strict=True):
        assert [(r.text, r.reward, r.finish_reason) for r in a.responses] == [
            (r.text, r.reward, r.finish_reason) for r in b.responses
        ]
        assert [r.mean_logprob for r in b.responses] == [-0.5] * N
    assert one.warnings == ()
    assert other.warnings == (f"{tmp_path / 'b.jsonl'} does not say how it was sampled; it is taken to be as this run samples",)


def test_another_order_works_by_prompt_and_is_told_by_step(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "b.jsonl", rows(2, step=1) + rows(1, step=2))
    with pytest.raises(UserError, match=r"step 1 of .* position 0 is 'p2' in the log and 'p0' in the run .*stored_match=prompt"):
        opened(path)
    assert opened(path, match="prompt").groups(1, PROMPTS[:2])[1].responses[0].text == "p1 0"


def test_without_steps_only_by_prompt(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "b.jsonl", rows(1, step=None) + rows(2, step=None))
    with pytest.raises(UserError, match="does not say the step of its responses; use stored_match=prompt"):
        opened(path)
    assert opened(path, match="prompt").groups(2, [PROMPTS[0]])[0].responses[1].text == "p0 1"
    odd = jsonl(tmp_path / "odd.jsonl", rows(1, step=None)[:3])
    with pytest.raises(UserError, match=r"groups have n = 2 responses, and the file has of prompt 'p1' 1"):
        read_log_file(odd, n=N, prompts=PROMPTS)


def test_prompts_may_be_given_in_full(tmp_path: Path) -> None:
    lines = [r | {"prompt_id": None, "prompt": f"Question {r['prompt_id'][1]}?"} for r in rows(1) + rows(2)]
    assert opened(jsonl(tmp_path / "b.jsonl", lines)).groups(1, PROMPTS[:2])[0].prompt.id == "p0"
    strange = jsonl(tmp_path / "strange.jsonl", [lines[0] | {"prompt": "Who?"}])
    with pytest.raises(UserError, match=r"row 1: the training set has no prompt with this text: 'Who[?]'"):
        read_log_file(strange, n=N, prompts=PROMPTS)


def test_without_log_probs_only_for_methods_that_compare_none(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "b.jsonl", rows(1, mean_logprob=None) + rows(2, mean_logprob=None))
    with pytest.raises(UserError, match=r"step 1 of .* has no log-probs for 4 of 4 responses, and the method compares log-probs"):
        opened(path)
    assert opened(path, logprobs=False).groups(1, PROMPTS[:2])[0].responses[0].mean_logprob is None


@pytest.mark.parametrize(("key", "value"), [("temperature", 0.6), ("top_p", 0.95)])
def test_other_sampling_is_refused(tmp_path: Path, key: str, value: float) -> None:
    sampling = SamplingSettings(**({"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 44} | {key: value}))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"was sampled at {key} {value:g} and this run samples at 1"):
        opened(native(tmp_path / "log", sampling=sampling))
    with pytest.raises(UserError, match=f"was sampled at {key} {value:g}"):
        opened(
            jsonl(
                tmp_path / "b.jsonl",
                [r | {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 44, key: value} for r in rows(1)],
            )
        )


def test_another_response_limit_is_noted(tmp_path: Path) -> None:
    (warning,) = opened(native(tmp_path / "log", sampling=SamplingSettings(1.0, 1.0, 99))).warnings
    assert "up to 99 tokens, this run with up to 44" in warning


def test_a_torn_last_part_and_another_model_are_told(tmp_path: Path) -> None:
    log = native(tmp_path / "log")
    with pytest.raises(UserError, match="has no responses of c; it has b"):
        opened(log, model="c")
    torn = log / "step-000002.parquet"
    torn.write_bytes(torn.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"stored peer: .*step-000002.parquet is torn"):
        opened(log)
    half = jsonl(tmp_path / "b.jsonl", rows(1) + rows(2))
    half.write_bytes(half.read_bytes()[:-10])
    with pytest.raises(UserError, match="the last line is cut off"):
        opened(half)


WRONG = [
    ({"response": 3}, "response is 3, expected a text"),
    ({"reward": 0.5}, "reward is 0.5, expected 1 or 0"),
    ({"reward": "1"}, "reward is '1'"),
    ({"mean_logprob": 0.2}, "mean_logprob is 0.2, expected a finite number of at most 0"),
    ({"logprobs": [-1.0]}, "give logprobs or mean_logprob, not both"),
    ({"logprobs": [], "mean_logprob": None}, "logprobs is no list of finite numbers"),
    ({"finish_reason": "stop"}, "finish_reason is 'stop', expected eos or length"),
    ({"prompt_id": "p9"}, "the training set has no prompt 'p9'"),
    ({"prompt": "Question 0?"}, "give prompt_id or prompt, one of them"),
    ({"prompt_id": None}, "give prompt_id or prompt, one of them"),
    ({"step": "1"}, "step is '1', expected int"),
    ({"logprob": -1}, "unknown keys logprob; known are prompt_id"),
]


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_a_wrong_row_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    lines = rows(1)
    lines[2] |= change
    path = jsonl(tmp_path / "b.jsonl", lines)
    with pytest.raises(UserError, match="row 3: ") as error:
        read_log_file(path, n=N, prompts=PROMPTS)
    assert says in str(error.value)


def test_log_probs_are_averaged_and_parquet_reads_as_jsonl(tmp_path: Path) -> None:
    lines = [r | {"logprobs": [-1.0, -3.0]} for r in rows(1, mean_logprob=None)]
    lines = [{k: v for k, v in r.items() if v is not None} for r in lines]
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "b.parquet")
    one, other = (read_log_file(p, n=N, prompts=PROMPTS) for p in (jsonl(tmp_path / "b.jsonl", lines), tmp_path / "b.parquet"))
    assert one.read(1).equals(other.read(1))
    assert one.read(1)["mean_logprob"].to_pylist() == [-2.0] * 4
    assert one.models() == ("b",)
    with pytest.raises(UserError, match=r"ends in .jsonl or .parquet"):
        read_log_file(jsonl(tmp_path / "b.txt", lines), n=N)
    mixed = jsonl(tmp_path / "mixed.jsonl", [lines[0] | {"model": "x"}, lines[1] | {"model": "y"}])
    with pytest.raises(UserError, match=r"several models \(x, y\)"):
        read_log_file(mixed, n=N)


def test_import_writes_parts_that_are_a_donor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.tasks import load_prompt_set

    known = load_prompt_set("arith-validation").prompts[:2]
    lines = [
        {"prompt": p.message, "response": "x", "reward": 0, "logprobs": [-1.0], "step": 1, "model": "them"}
        for p in known
        for _ in range(2)
    ]
    path = jsonl(tmp_path / "log.jsonl", lines)
    assert import_main([str(path), "--set", "arith-validation", "--out", str(tmp_path / "out")]) == 0
    assert '"rows": 4, "with_log_probs": 4, "steps": "steps 1 to 1"' in capsys.readouterr().out
    assert trajectories.problems(tmp_path / "out") == []
    log, identity = identify(tmp_path / "out", n=2)
    assert log.models() == ("them",)
    assert identity.startswith("sha256:")
    assert import_main([str(path), "--set", "arith-validation", "--out", str(tmp_path / "out")]) == 2
    assert "is not empty" in capsys.readouterr().err


# ---- given donors, as a run


def test_a_given_log_is_in_the_fingerprint_by_its_bytes_and_its_path_is_not(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "them.jsonl", rows(1) + rows(2))
    second = tmp_path / "elsewhere" / "them.jsonl"
    second.parent.mkdir()
    shutil.copy(first, second)
    (tmp_path / "changed").mkdir()
    changed = jsonl(tmp_path / "changed" / "them.jsonl", rows(1))
    one, other, third = (resolve([*STORED, "method.n=2", f"donor={p}"]) for p in (first, second, changed))
    assert [p.fingerprint for p in one[0]] == [p.fingerprint for p in other[0]]
    assert [p.fingerprint for p in one[0]] != [p.fingerprint for p in third[0]]
    assert len(one[0]) == 2  # nobody of the pair wrote it, so both can learn from it
    assert all(p.needs == () and p.recipe["donor"]["model"] == "them" for p in one[0])
    assert one[1].donor == str(first)
    assert find_donor(one[0][0].recipe, one[1].donor, tmp_path) == first
    first.write_text(first.read_text() + json.dumps(rows(1)[0]) + "\n")
    with pytest.raises(UserError, match="is no longer the log that the run was frozen with"):
        find_donor(one[0][0].recipe, one[1].donor, tmp_path)


def test_a_log_of_one_of_the_pair_teaches_the_other(tmp_path: Path) -> None:
    log = native(tmp_path / "log", model="tiny-qwen3")
    plans, _ = resolve([*STORED, "method.n=2", f"donor={log}"])
    assert [p.cell["models"] for p in plans] == [["tiny-smollm3"]]
    assert set(plans[0].deviations) == {"donor.log", "method.n"}
    with pytest.raises(UserError, match="a model cannot be its own peer"):
        resolve([*STORED, "method.n=2", f"donor={log}", "model=tiny-qwen3"])
    with pytest.raises(UserError, match="does not exist; give auto, a run directory"):
        resolve([*STORED, f"donor={tmp_path / 'nowhere'}"])
    with pytest.raises(UserError, match="holds no trajectory log"):
        resolve([*STORED, f"donor={tmp_path}"])


def make_run(root: Path, plan: Any, *, finished: bool) -> RunRecord:
    record = RunRecord.create(root, cell=plan.cell, recipe=plan.recipe, deviations=plan.deviations)
    if finished:
        (record.path / "selected.json").write_text("{}")
    return record


def test_a_donor_that_is_absent_or_unfinished_is_told_with_what_to_do(tmp_path: Path) -> None:
    (plan,), _ = resolve([*STORED, "model=tiny-qwen3"])
    with pytest.raises(
        UserError, match=r"does not have it. Train it first: the same command with method=grpo method.n=8 model=tiny-smollm3"
    ):
        find_donor(plan.recipe, None, tmp_path)
    record = make_run(tmp_path, plan.needs[0], finished=False)
    for wrong in (lambda: find_donor(plan.recipe, None, tmp_path), lambda: resolve([*STORED, f"donor={record.path}"])):
        with pytest.raises(UserError, match=r"has not finished training \(step 0 of \?, prepared\)"):
            wrong()
    make_run(tmp_path, plan.needs[0], finished=True)
    assert find_donor(plan.recipe, None, tmp_path) == record.path
    native(record.path / "trajectories", model="tiny-smollm3")
    # Named by its path it is the same donor, and the same run.
    assert [p.fingerprint for p in resolve([*STORED, f"donor={record.path}"])[0]] == [plan.fingerprint]


def test_a_donor_of_another_recipe_is_told_with_the_keys_that_differ(tmp_path: Path) -> None:
    (plan,), _ = resolve([*STORED, "model=tiny-qwen3", "seed=4", "method.n=2"])
    (other,), _ = resolve(["method=grpo", "pair=1", "scale=smoke", "model=smollm3-3b", "seed=3", "method.n=2"])
    record = make_run(tmp_path, other, finished=True)
    native(record.path / "trajectories", model="tiny-smollm3")
    recipe = plan.recipe | {"donor": plan.recipe["donor"] | {"log": f"run:{other.fingerprint}"}}
    with pytest.raises(UserError, match=r"step 1 of .* The donor's recipe differs in seed\."):
        open_donor(recipe, record.path, (("p1", "p0"), ("p2", "p0")), PROMPTS, logprobs=True)


def test_a_run_remembers_the_bytes_that_it_learns_from(tmp_path: Path) -> None:
    log = native(tmp_path / "log")
    note(tmp_path, RECIPE, opened(log))
    note(tmp_path, RECIPE, opened(log))
    noted = json.loads((tmp_path / "donor.json").read_text())
    assert (noted["model"], noted["match"], noted["path"], noted["warnings"]) == ("b", "step", str(log), [])
    native(log, sampling=SamplingSettings(1.0, 1.0, 45))
    with pytest.raises(UserError, match="holds other bytes than when"):
        note(tmp_path, RECIPE, opened(log))
