"""The estimate's formulas: parameter counts against real models, hand-worked bytes and seconds, placements that do and do not fit."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen3Config, SmolLM3Config

from experiments.errors import UserError
from experiments.estimate.fitting import changes, obstacles, remedies
from experiments.estimate.memory import FORMULAS, GB, Model, layer_bytes, model_memory, phases
from experiments.estimate.setting import Assumptions, Gpu, Load, Placement, assumption_table, assumptions
from experiments.estimate.shapes import TYPES, Shape, find_shape, from_config, table
from experiments.estimate.timing import costs, run_time
from experiments.tiny import resolve_model_path

TINY = ("tiny-smollm3", "tiny-qwen3", "tiny-llama")
CONFIGS = {"smollm3": SmolLM3Config, "qwen3": Qwen3Config, "llama": LlamaConfig}


def counted(model: torch.nn.Module) -> int:
    """Parameters, tied ones once."""
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", TINY)
def test_a_packaged_model_has_as_many_parameters_and_bytes(name):
    shape = find_shape(f"package:{name}").shape
    model = AutoModelForCausalLM.from_pretrained(resolve_model_path(f"package:{name}"), dtype=torch.bfloat16)
    assert shape.parameters == counted(model)
    assert 2 * shape.parameters == sum(p.nbytes for p in model.parameters())
    assert shape.embedding_parameters == model.get_input_embeddings().weight.numel()
    assert shape.layer_parameters == counted(model.model.layers[0])
    # The cache of 5 tokens, as the model fills it.
    cache = model(torch.arange(2, 7)[None], use_cache=True).past_key_values
    assert 5 * shape.kv_bytes() == sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))


@pytest.mark.parametrize(
    ("source", "kind"),
    [*zip(("HuggingFaceTB/SmolLM3-3B-Base", "Qwen/Qwen3-1.7B-Base", "OctoThinker/OctoThinker-3B-Hybrid-Base"), CONFIGS)],
)
def test_a_model_of_the_paper_has_the_published_count_and_so_has_transformers(source, kind):
    shape = find_shape(source).shape
    assert shape.parameters == table()[source]["parameters"]
    config = CONFIGS[kind](
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        pad_token_id=0,
    )
    with torch.device("meta"):  # shapes without memory
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    assert counted(model) == shape.parameters
    assert from_config(config.to_dict(), "here") == shape


def test_smollm3_is_the_default_of_its_configuration():
    default = SmolLM3Config().to_dict()
    assert from_config(default, "here") == find_shape("HuggingFaceTB/SmolLM3-3B-Base").shape


@pytest.mark.parametrize("kind", TYPES)
def test_a_config_that_is_silent_means_what_transformers_takes_it_to_mean(kind, tmp_path):
    sizes = dict(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=50
    )
    config = {"model_type": kind, **sizes, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    full = AutoConfig.from_pretrained(tmp_path)
    shape = from_config(config, "here")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(full)
    model.tie_weights()
    assert shape.parameters == counted(model)


@pytest.mark.parametrize("config", [{"model_type": "gpt2"}, {}, {"model_type": "llama", "attention_bias": True}])
def test_other_architectures_are_refused(config):
    with pytest.raises(UserError, match=r"is not covered; known: llama, smollm3, qwen3"):
        from_config(config, "x/config.json")


# One small decoder, worked by hand. L 2, H 8, I 16, V 100, Q = 2 x 4 = 8, K = 1 x 4 = 4.
TOY = Shape(layers=2, hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, vocabulary=100, tied=True, qk_norm=False)
GPU = Gpu("toy", memory=200_000, bf16=1e6, bandwidth=1e5, source="here")
SURE = replace(
    assumptions({}),
    process_gb=0.0,
    sampler_workspace_gb=0.0,
    sample_share=0.5,
    score_share=0.5,
    train_share=0.25,
    bandwidth_share=0.5,
    decode_overhead_ms=10.0,
    sync_gb_per_s=1000 / GB,
    host_gb_per_s=1000 / GB,
    switch_seconds=1.0,
    verify_seconds=2.0,
    transferred_share=0.25,
    logit_bytes_update=10,
    logit_bytes_score=6,
)
LOAD = Load(
    prompts=4,
    n=2,
    prompt_tokens=10,
    response_tokens=20,
    longest_response=30,
    limit=50,
    scored=1,
    reference=False,
    exchanges=True,
    steps=6,
)
PLACE = Placement(
    engine="verl",
    layout="colocated",
    gpus=2,
    share=2,
    tensor_parallel=1,
    micro_tokens=100,
    checkpointing=True,
    width=2,
    memory_utilization=0.25,
    sleep=True,
    offload=False,
)


def models(place: Placement = PLACE, load: Load = LOAD) -> tuple[Model, ...]:
    return tuple(model_memory(name, TOY, load, place, (GPU, SURE)) for name in "ab")


def totals(place: Placement) -> dict[tuple[str, str], float]:
    return {(p.kind, p.model): p.total for p in phases(models(place), place)}


def test_shape_by_hand():
    # q and o 2 x 8 x 8, k and v 2 x 8 x 4: 192; gate, up, down 3 x 8 x 16 = 384; two norms 16: 592
    assert TOY.layer_parameters == 592
    # embedding 100 x 8 = 800, last norm 8; 2 x 592 + 808 = 1992
    assert (TOY.embedding_parameters, TOY.outer_parameters, TOY.parameters, TOY.multiplied) == (800, 808, 1992, 1992)
    # an output layer of its own: 800 more, and the embedding is looked up, not multiplied with
    untied = replace(TOY, tied=False)
    assert (untied.parameters, untied.multiplied) == (2792, 1992)
    # K and V x 2 layers x 1 head x 4 x 2 bytes; one key-value head cannot be split, so tensor parallel repeats it
    assert (TOY.kv_bytes(), TOY.kv_bytes(2)) == (32, 32)
    assert replace(TOY, kv_heads=4).kv_bytes(2) == 64
    # 3 tokens x (2 x 1992 + 4 x 2 x 8 x 5): 3 x 4304
    assert TOY.forward_flops(3, 5) == 12_912
    # 2 x (8 x 8 + 3 x 8 + 3 x 4 + 4 x 16) = 2 x 164
    assert layer_bytes(TOY, 2) == 328


def test_pieces_by_hand():
    pieces = models()[0].pieces
    assert pieces.keys() == FORMULAS.keys()
    assert pieces == {
        "weights": 3984,  # 4 x 1992 / 2
        "gradients": 3984,
        "moments": 7968,  # 8 x 1992 / 2
        "reference": 0,
        "gathered": 3984,  # 2 x (808 + 2 x 592)
        "gradient buffers": 4848,  # (2 + 4) x 808
        "activations": 36_000,  # 100 x (2 x 2 x 8 + 328)
        "logits": 100_000,  # 10 x 100 x 100
        "scoring activations": 32_800,  # 100 x 328
        "scoring logits": 60_000,  # 6 x 100 x 100
        "sampler": 50_000,  # 0.25 x 200,000
        "sampler weights": 3984,  # 2 x 1992
        "sync buffer": 4800,  # (2 + 4) x 800
        "processes": 0,
    }
    assert models(replace(PLACE, checkpointing=False))[0].pieces["activations"] == 65_600  # 100 x 2 x 328
    assert models(load=replace(LOAD, reference=True))[0].pieces["reference"] == 3984


def test_sampler_by_hand():
    s = models()[0].sampler
    # 50,000 - 3,984 = 46,016 bytes; / (32 x 50) = 28.76; / (32 x 30) = 47.9; 8 responses over 2 replicas
    assert (s.kv_bytes, s.full, s.typical, s.needed) == (46_016, 28, 47, 4)
    # Two GPUs a replica: half the weights on each, 50,000 - 1,992; one replica has all 8 responses.
    s = models(replace(PLACE, tensor_parallel=2))[0].sampler
    assert (s.kv_bytes, s.needed) == (48_008, 8)


def test_phases_by_hand():
    # The other model waits with weights and moments: 3,984 + 7,968 = 11,952.
    assert totals(PLACE) == {
        (kind, model): total
        for model in "ab"
        for kind, total in {
            "sample": 73_904,  # 3,984 + 7,968 + 50,000 + 11,952
            "score": 120_688,  # 3,984 + 7,968 + 3,984 + 32,800 + 60,000 + 11,952
            "update": 172_720,  # 3,984 + 3,984 + 7,968 + 3,984 + 4,848 + 36,000 + 100,000 + 11,952
            "sync": 32_688,  # 3,984 + 7,968 + 4,800 + 3,984 + 11,952
        }.items()
    }


def test_sleep_and_offload():
    asleep, awake = totals(PLACE), totals(replace(PLACE, sleep=False))
    assert awake["sample", "a"] - asleep["sample", "a"] == 50_000  # b's sampler
    assert awake["update", "a"] - asleep["update", "a"] == 100_000  # both samplers
    assert awake["sync", "a"] - asleep["sync", "a"] == 100_000 - 3984  # a's own sampler holds its weights already
    away = totals(replace(PLACE, offload=True))
    assert asleep["update", "a"] - away["update", "a"] == 11_952  # b's weights and moments
    assert asleep["score", "a"] - away["score", "a"] == 11_952 + 7968  # and a's own moments
    assert away["sample", "a"] == 50_000


def test_side_by_side_a_gpu_holds_one_model():
    apart = replace(PLACE, layout="side_by_side", gpus=4)
    assert totals(apart)["update", "a"] == totals(PLACE)["update", "a"] - 11_952


def test_what_fits_and_what_would():
    assert obstacles(models(), PLACE, GPU) == []
    large = replace(PLACE, micro_tokens=200)  # activations and logits are 272,000 now: 308,720 in all
    assert obstacles(models(large), large, GPU) == ["update of a needs 0.0 GB of 0 GB"]
    assert remedies(models, large, GPU, LOAD.limit) == [("policy.tokens_per_gpu=100", 172_720)]
    # Two changes are needed: micro-batches as above, and one sampler of 100,000 bytes must sleep while the other works.
    both = replace(PLACE, micro_tokens=200, memory_utilization=0.5, sleep=False)
    ((together, total),) = remedies(models, both, GPU, LOAD.limit)
    assert {o.partition("=")[0] for o in together.split()} == {"policy.tokens_per_gpu", "policy.sleep"}
    assert total <= GPU.memory
    hopeless = replace(GPU, memory=10_000)
    assert remedies(models, PLACE, hopeless, LOAD.limit) == []


def test_a_sampler_without_room_for_a_sequence_is_an_obstacle():
    tight = replace(PLACE, memory_utilization=0.02)  # 4,000 - 3,984 bytes
    assert obstacles(models(tight), tight, GPU) == [f"the sampler of {m} holds no sequence of full length" for m in "ab"]
    assert ("policy.memory_utilization=0.1", 172_720) in remedies(models, tight, GPU, LOAD.limit)


def test_changes_end_at_the_longest_sequence():
    tokens = [p.micro_tokens for o, p in changes(replace(PLACE, micro_tokens=1000), 100) if "tokens_per_gpu" in o]
    assert tokens == [500, 250, 125, 100]


def seconds(place: Placement = PLACE, load: Load = LOAD) -> dict[str, float | None]:
    return {c.phase: c.seconds for c in costs(models(place, load)[0], load, place, (GPU, SURE))}


def test_seconds_by_hand():
    found = {c.phase: c for c in costs(models()[0], LOAD, PLACE, (GPU, SURE))}
    # prefill: 4 x 10 tokens x (3,984 + 64 x 5) = 172,160; decoding: 160 x (3,984 + 64 x 20) = 842,240
    assert (found["sampling"].tokens, found["sampling"].flops) == (200, 1_014_400)
    # 30 steps (the longest; the batch alone would need 4 x 20 / 4): weights 30 x 3,984, cache 80 x 20 x 32: 170,720 bytes at 50,000/s,
    # longer than 842,240 FLOPs at 2 x 1e6 x 0.5; and 172,160 / 1e6 of prefill, 30 x 0.01 of overhead
    assert found["sampling"].seconds == pytest.approx(3.4144 + 0.17216 + 0.3)
    # 8 x 30 tokens, once and a quarter: 300 x (3,984 + 64 x 15) at 2 x 1e6 x 0.5
    assert (found["scoring"].flops, found["scoring"].seconds) == (1_483_200, pytest.approx(1.4832))
    # four forward passes' worth: 4 x 240 x 4,944 at 2 x 1e6 x 0.25; three without checkpointing
    assert (found["update"].flops, found["update"].seconds) == (4_746_240, pytest.approx(9.49248))
    assert seconds(replace(PLACE, checkpointing=False))["update"] == pytest.approx(9.49248 * 3 / 4)
    # 3,984 bytes at 1,000/s and 1 s; with offload 2 x 12 x 1,992 / 2 bytes more
    assert found["sync"].seconds == pytest.approx(4.984)
    assert seconds(replace(PLACE, offload=True))["sync"] == pytest.approx(4.984 + 23.904)


def test_less_is_scored_without_a_peer_or_by_the_sampler():
    assert seconds(load=replace(LOAD, exchanges=False))["scoring"] == pytest.approx(1.4832 / 1.25)
    assert seconds(load=replace(LOAD, scored=0))["scoring"] == pytest.approx(1.4832 / 5)


def test_a_small_cache_means_more_decoding_steps():
    tight = replace(PLACE, memory_utilization=0.025)  # 5,000 - 3,984 = 1,016 bytes: one typical sequence of 960
    assert models(tight)[0].sampler.typical == 1
    # 4 x 20 / 1 = 80 steps instead of 30: 50 x 3,984 bytes and 50 x 0.01 s more
    assert seconds(tight)["sampling"] == pytest.approx(seconds()["sampling"] + 50 * 3984 / 50_000 + 0.5)


@pytest.mark.parametrize(("layout", "gpus", "times"), [("colocated", 2, 2), ("side_by_side", 4, 1)])
def test_a_step_and_a_run(layout, gpus, times):
    place = replace(PLACE, layout=layout, gpus=gpus)
    found = [c for m in models(place) for c in costs(m, LOAD, place, (GPU, SURE))]
    run = run_time(found, LOAD, place, SURE)
    step = times * (3.88656 + 1.4832 + 9.49248 + 4.984) + 2
    assert run is not None
    assert run.step_seconds == pytest.approx(step)
    assert run.gpu_hours == pytest.approx(gpus * 6 * step / 3600)


def test_every_assumption_is_data_with_unit_and_reason():
    assert [f.name for f in fields(Assumptions)] == [*assumption_table()]
    assert all(entry.keys() == {"value", "unit", "why"} for entry in assumption_table().values())


# Every assumption has a reader: halved, it changes a byte or a second. The lengths are read on the way to Load, where
# test_estimate_cli.py changes them.
LENGTHS = ("prompt_tokens", "response_tokens", "longest_response")


@pytest.mark.parametrize("name", [name for name in assumption_table() if name not in LENGTHS])
def test_no_assumption_is_dead(name):
    gpu, place = replace(GPU, memory=200 * GB), replace(PLACE, offload=True)  # processes and workspace are counted in GB

    def all_of(a: Assumptions) -> object:
        made = model_memory("a", TOY, LOAD, place, (gpu, a))
        found = costs(made, LOAD, place, (gpu, a))
        return made, found, run_time(found, LOAD, place, a)

    plain = replace(SURE, process_gb=1.0, sampler_workspace_gb=1.0)
    assert all_of(plain) != all_of(replace(plain, **{name: getattr(plain, name) / 2}))
