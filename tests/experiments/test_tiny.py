"""The stand-in models: the shipped files are the built ones, tokenizers carry any text, the warm start keeps to its recipe."""

from __future__ import annotations

import json
import re
import shutil
from itertools import islice

import pytest
from safetensors import safe_open

from experiments import tiny
from experiments.errors import UserError
from experiments.tasks import PINS, load_prompt_set
from experiments.tasks.arithmetic import DIGITS, FAMILIES, held_out, solution, triples
from experiments.tiny import build, resolve_model_path
from experiments.tiny.__main__ import main, write_sums
from experiments.tiny.texts import Skills, examples
from graft.retokenize import TextCodec

NAMES = tuple(r.name for r in build.RECIPES)
ARCHITECTURES = {"tiny-smollm3": "SmolLM3ForCausalLM", "tiny-qwen3": "Qwen3ForCausalLM", "tiny-llama": "LlamaForCausalLM"}
DIGIT_TOKENS = {"tiny-smollm3": ["12"], "tiny-qwen3": ["1", "2"], "tiny-llama": [" 12"]}
TEXTS = (
    "two  spaces\r\n\ttab \n\n end ",
    "e\u0301 \u00e9 \u00df \u4f60\u597d \u0663\uff14\u00b2 1234567",
    "\U0001f642\U0001f469\u200d\U0001f467 \ufeff\u200b\x00\x7f",
    "don't , . ! ?  \\boxed{-1/2} $x^2$",
    " ",
)


@pytest.fixture(scope="module")
def codecs() -> dict[str, TextCodec]:
    return {name: TextCodec.load(tiny.PACKAGED / name) for name in NAMES}


def test_packaged_models_are_the_built_ones():
    assert {name: resolve_model_path(f"package:{name}") for name in NAMES} == {n: str(tiny.PACKAGED / n) for n in NAMES}
    on_disk = {p.relative_to(tiny.PACKAGED).as_posix() for p in tiny.PACKAGED.rglob("*") if p.is_file()}
    assert on_disk - {"SHA256SUMS"} == set(tiny.read_sums())


def test_a_changed_packaged_file_is_refused(tmp_path, monkeypatch):
    shutil.copytree(tiny.PACKAGED, tmp_path / "models")
    monkeypatch.setattr(tiny, "PACKAGED", tmp_path / "models")
    weights = tmp_path / "models" / NAMES[0] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(UserError, match="not the file that was built"):
        resolve_model_path(f"package:{NAMES[0]}")
    assert resolve_model_path(f"package:{NAMES[1]}")
    weights.unlink()
    with pytest.raises(UserError, match="not the file that was built"):
        resolve_model_path(f"package:{NAMES[0]}")


def test_unknown_names_missing_and_existing_directories(tmp_path):
    with pytest.raises(UserError, match=r"no packaged model 'tiny-gpt'.*tiny-llama"):
        resolve_model_path("package:tiny-gpt")
    with pytest.raises(UserError, match="does not exist"):
        resolve_model_path(str(tmp_path / "nowhere"))
    assert resolve_model_path(str(tmp_path)) == str(tmp_path)
    assert resolve_model_path("owner/model") == "owner/model"


@pytest.mark.parametrize("name", NAMES)
def test_architecture_and_weights(name):
    config = json.loads((tiny.PACKAGED / name / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURES[name]]
    assert config["max_position_embeddings"] >= 256
    generation = json.loads((tiny.PACKAGED / name / "generation_config.json").read_text())
    assert (generation["pad_token_id"], generation["eos_token_id"]) == (0, 1)
    with safe_open(tiny.PACKAGED / name / "model.safetensors", "pt") as file:
        tensors = [file.get_slice(key) for key in file.keys()]
    assert {t.get_dtype() for t in tensors} == {"BF16"}
    sizes = [t.get_shape() for t in tensors]
    assert 600_000 < sum(s[0] * (s[1] if len(s) > 1 else 1) for s in sizes) < 700_000


@pytest.mark.parametrize("name", NAMES)
def test_tokenizer_carries_any_text_and_renders_one_user_message(name, codecs):
    codec = codecs[name]
    assert (codec.tokenizer.pad_token_id, codec.tokenizer.eos_token_id, codec.tokenizer.bos_token_id) == (0, 1, None)
    for text in TEXTS:
        assert codec.decode(codec.encode(text)) == text
    prompt = load_prompt_set("arith-heldout").prompts[0]
    assert codec.decode(codec.render(prompt)) == prompt.message + "\n"


def test_tokenizers_differ_in_how_they_cut_numbers(codecs):
    assert len({codec.fingerprint for codec in codecs.values()}) == 3
    for name, expected in DIGIT_TOKENS.items():
        ids = codecs[name].encode("is 12")[-len(expected) :]
        assert [codecs[name].decode((i,)) for i in ids] == expected


@pytest.mark.parametrize("name", NAMES)
def test_lengths_fit_the_limits_and_the_gate(name, codecs):
    """Prompts within 64 and responses within 44 tokens (scale=cpu). Under about 16 tokens one wrong step would fail delta = 0.8."""
    encode = codecs[name].encode
    assert max(len(codecs[name].render(p)) for source in PINS for p in load_prompt_set(source).prompts) <= 64
    lengths = [len(encode(solution(f.ops, t))) + 1 for f in FAMILIES for t in triples(f.ops, DIGITS, reserved=None)[::7]]
    assert min(lengths) >= 24
    assert max(lengths) <= 44


def test_warm_start_stream_keeps_its_shares_and_never_shows_a_held_out_triple():
    skills = Skills(frozenset({0, 1, 2, 3, 4, 5}))
    stream = list(islice(examples("test", skills), 6000))
    assert stream[:50] == list(islice(examples("test", skills), 50))
    assert not any(held_out(tuple(map(int, re.findall(r"\d+", prompt)))) for prompt, _ in stream)
    exercises = [prompt for prompt, _ in stream if prompt.startswith("Do ")]
    assert abs(len(exercises) / len(stream) - skills.exercise_share) < 0.03
    for number in (0, 11):
        family = FAMILIES[number]
        marker = family.wording.split("{")[0]
        answers = [(p, a) for p, a in stream if marker in p]
        right = sum(solution(family.ops, tuple(map(int, re.findall(r"\d+", p)))) == a for p, a in answers) / len(answers)
        assert abs(right - (skills.strong_share if number in skills.strong else skills.weak_share)) < 0.06


def test_each_pair_of_stand_ins_is_complementary_in_both_directions():
    strong = {r.name: r.skills.strong for r in build.RECIPES}
    assert all(len(strong[a] - strong[b]) >= 3 for a in strong for b in strong if a != b)
    assert len(strong["tiny-smollm3"] & strong["tiny-qwen3"]) < len(strong["tiny-smollm3"] & strong["tiny-llama"])


@pytest.mark.parametrize("recipe", build.RECIPES, ids=lambda r: r.name)
def test_packaged_tokenizer_is_what_the_recipe_builds(recipe, codecs):
    assert build.build_tokenizer(recipe).backend_tokenizer.to_str() == codecs[recipe.name].tokenizer.backend_tokenizer.to_str()


@pytest.mark.slow
def test_building_is_repeatable(tmp_path):
    for out in ("one", "two"):
        assert main(["--out", str(tmp_path / out), "--steps", "1", "--only", "tiny-llama"]) == 0
    sums = [(tmp_path / out / "SHA256SUMS").read_text() for out in ("one", "two")]
    assert sums[0] == sums[1]
    assert "tiny-llama/model.safetensors" in sums[0]
    write_sums(tmp_path / "one")
    assert (tmp_path / "one" / "SHA256SUMS").read_text() == sums[0]
