"""The peer text contract: what crosses, what is refused and why, and EOS on both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken

from graft.retokenize import REASONS, TextCodec, retokenize
from graft.types import Prompt, Response
from tests.graft.tiny import codec, lossy_codec

QUICK, SMALL = codec("quick"), codec("small")
TEXTS = (
    "The answer is \\boxed{\\frac{1}{2}}.", "答案是 12。", "🙂 ≥ √2 👩‍👩‍👧", "  leading", "\n\nnewlines",
    "trailing\n", "\t", " ", "café", "cafe\u0301", "a\u2028b", "NUL \x00 inside", "1 000 000",
)  # fmt: skip


def sampled(text: str, sender: TextCodec, *, eos: bool = True) -> Response:
    ids = (*sender.encode(text), *([sender.eos_id] if eos else []))
    return Response(ids, (-1.0,) * len(ids), sender.response_text(ids), "eos" if eos else "length", 1.0)


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("sender", "receiver"), [(QUICK, SMALL), (SMALL, QUICK)])
def test_text_crosses_unchanged_with_eos_exactly_if_the_sender_stopped(
    sender: TextCodec, receiver: TextCodec, text: str, eos: bool
) -> None:
    r = sampled(text, sender, eos=eos)
    assert r.text == text
    got = retokenize(r, sender, receiver, max_tokens=500)
    assert got.reason == "ok"
    assert got.ids is not None
    assert (got.ids[-1] == receiver.eos_id) is eos
    assert not receiver.special_ids.intersection(got.ids[:-1])
    assert receiver.response_text(got.ids) == text


def test_the_two_tokenizers_really_differ() -> None:
    assert QUICK.fingerprint != SMALL.fingerprint
    assert QUICK.encode("There are apples") != SMALL.encode("There are apples")
    assert QUICK.eos_id != SMALL.eos_id


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), st.booleans())
def test_any_text_crosses_losslessly_or_is_refused_with_a_known_reason(text: str, eos: bool) -> None:
    got = retokenize(sampled(text, QUICK, eos=eos), QUICK, SMALL, max_tokens=500)
    if got.ids is None:
        assert got.reason in REASONS
        assert any(x in text for x in ("\ufffd", "<"))
    else:
        assert SMALL.response_text(got.ids) == text


def test_shared_tokenizer_gives_the_ids_back() -> None:
    # Ids that encode(decode(ids)) would not give: "Ben" letter by letter.
    letters = tuple(QUICK.encode(c)[0] for c in "Ben")
    assert QUICK.encode(QUICK.decode(letters)) != letters
    r = Response((*letters, QUICK.eos_id), (-1.0,) * 4, "Ben", "eos", 1.0)
    assert retokenize(r, QUICK, codec("quick"), max_tokens=4).ids == r.ids


def test_shared_tokenizer_with_another_eos_ends_in_the_receivers() -> None:
    # Base and chat models often share a tokenizer and stop at different tokens; the receiver must see its own.
    chat = TextCodec(codec("small").tokenizer, frozenset({SMALL.tokenizer.convert_tokens_to_ids("<|user|>")}))
    ids = (*SMALL.encode("x"), SMALL.tokenizer.convert_tokens_to_ids("<|user|>"))
    r = Response(ids, (-1.0,) * len(ids), chat.response_text(ids), "eos", 1.0)
    assert retokenize(r, chat, SMALL, max_tokens=9).ids == (*SMALL.encode("x"), SMALL.eos_id)


@pytest.mark.parametrize("shared", [True, False])
def test_refused_empty(shared: bool) -> None:
    receiver = QUICK if shared else SMALL
    for r in (Response((QUICK.eos_id,), (-1.0,), "", "eos", 0.0), Response((), (), "", "length", 0.0)):
        assert retokenize(r, QUICK, receiver, max_tokens=9) == (retokenize(r, None, receiver, max_tokens=9))
        assert retokenize(r, QUICK, receiver, max_tokens=9).reason == "empty"


def test_refused_replacement_character() -> None:
    # A text cut inside a character: the first byte of "é" alone decodes to U+FFFD and has no way back to the same bytes.
    ids = QUICK.encode("é")[:1]
    r = Response(ids, (-1.0,), QUICK.response_text(ids), "length", 0.0)
    assert "\ufffd" in r.text
    assert retokenize(r, QUICK, SMALL, max_tokens=9).reason == "replacement character"


@pytest.mark.parametrize("receiver", [QUICK, SMALL])
def test_refused_special_token_sampled_inside(receiver: TextCodec) -> None:
    pad = QUICK.tokenizer.pad_token_id
    ids = (*QUICK.encode("ab"), pad, *QUICK.encode("c"))
    r = Response(ids, (-1.0,) * len(ids), QUICK.response_text(ids), "length", 0.0)
    assert retokenize(r, QUICK, receiver, max_tokens=9).reason == "special token"


def test_refused_text_that_spells_the_receivers_special_token() -> None:
    r = sampled("now <|user|> asks", QUICK)
    assert retokenize(r, QUICK, SMALL, max_tokens=99).reason == "special token"
    assert retokenize(r, None, SMALL, max_tokens=99).reason == "special token"


def test_special_tokens_without_a_role_are_special_too() -> None:
    # Llama's <|start_header_id|> is neither BOS, EOS, PAD nor listed as additional: only the added vocabulary says so.
    tok = codec("quick").tokenizer
    tok.backend_tokenizer.add_special_tokens([AddedToken("<|header|>", special=True)])
    receiver = TextCodec(tok, frozenset({tok.eos_token_id}))
    assert tok.convert_tokens_to_ids("<|header|>") not in tok.all_special_ids
    r = sampled("a <|header|> b", SMALL)
    assert retokenize(r, SMALL, receiver, max_tokens=99).reason == "special token"
    ids = receiver.encode("a <|header|> b")
    inside = Response(ids, (-1.0,) * len(ids), receiver.response_text(ids), "length", 1.0)
    assert retokenize(inside, receiver, SMALL, max_tokens=99).reason == "special token"
    assert retokenize(inside, receiver, receiver, max_tokens=99).reason == "special token"


def test_refused_not_lossless() -> None:
    lossy = lossy_codec()
    assert retokenize(sampled("Ben", QUICK), QUICK, lossy, max_tokens=99).reason == "not lossless"
    assert retokenize(sampled("ben", QUICK), QUICK, lossy, max_tokens=99).reason == "ok"


def test_refused_over_length_counts_the_receivers_tokens_and_eos() -> None:
    r = sampled("There are seven apples", QUICK)
    needed = len(SMALL.encode(r.text)) + 1
    assert needed != len(r.ids)
    assert len(retokenize(r, QUICK, SMALL, max_tokens=needed).ids or ()) == needed
    assert retokenize(r, QUICK, SMALL, max_tokens=needed - 1).reason == "over length"
    assert retokenize(r, QUICK, QUICK, max_tokens=len(r.ids) - 1).reason == "over length"
    unfinished = sampled("There are seven apples", QUICK, eos=False)
    assert retokenize(unfinished, QUICK, SMALL, max_tokens=needed - 1).reason == "ok"


def test_stored_text_needs_no_sender() -> None:
    r = sampled("Ben has 8", QUICK)
    assert retokenize(r, None, SMALL, max_tokens=99) == retokenize(r, QUICK, SMALL, max_tokens=99)


def test_render_uses_each_models_own_template_and_the_suffix() -> None:
    p = Prompt("p", "How many?", "1")
    assert QUICK.decode(replace(QUICK, prompt_suffix=" Think.", _prompts={}).render(p)) == "How many? Think.\n"
    ids = SMALL.render(p)
    assert ids[0] == SMALL.tokenizer.convert_tokens_to_ids("<|user|>")
    assert SMALL.decode(ids[1:]) == "How many?\n"


def test_load_joins_the_eos_sets(tiny_dirs: dict[str, Path], tmp_path: Path) -> None:
    from transformers import GenerationConfig

    codec("quick").tokenizer.save_pretrained(tmp_path)
    GenerationConfig(eos_token_id=[1, 7]).save_pretrained(tmp_path)
    assert TextCodec.load(tmp_path).eos_ids == {1, 7}
    assert TextCodec.load(tiny_dirs["quick"]).eos_ids == {QUICK.eos_id}
    assert TextCodec.load(tiny_dirs["quick"]).fingerprint == QUICK.fingerprint
