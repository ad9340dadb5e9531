"""Vocabularies of every kind of tokenizer guide alike; nobody loads the library who needs no grammar."""

import subprocess
import sys

import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask

from fakes import checkpoints, ggufs, tiny_tokenizer
from fakes.grammars import of_schema, schema_check
from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.matcher import GrammarMatcher
from kvasir_runtime.wire import Grammar, SamplingConfig

SCHEMA = {
    "type": "object",
    "properties": {
        "the plan": {"type": "string", "maxLength": 5},
        "ü": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["the plan", "ü"],
    "additionalProperties": False,
}


def byte_level(folder):
    checkpoints.write_tokenizer(folder)
    return folder, 0


def byte_fallback(folder):
    encoder = tiny_tokenizer.byte_fallback()
    encoder.add_special_tokens(["</s>"])
    encoder.save(str(folder / "tokenizer.json"))
    return folder, encoder.token_to_id("</s>")


def gguf(folder):
    source = checkpoints.write(folder / "source")
    path = folder / "model.gguf"
    ggufs.write(source, path)
    return path, 0


@pytest.mark.parametrize("kind", [byte_level, byte_fallback, gguf])
@pytest.mark.parametrize("extra", [0, 37], ids=["as it is", "padded logits"])
def test_every_kind_of_tokenizer_guides(tmp_path, kind, extra):
    folder, eos = kind(tmp_path)
    size = vocabulary.load(folder, 1, (eos,)).tokenizer.vocab_size + extra
    words = vocabulary.load(folder, size, (eos,))
    assert words.tokenizer.vocab_size == size
    grammar = of_schema(SCHEMA)
    assert validate.verdict(grammar, words).error == ""
    mask, ended = allocate_token_bitmask(1, size), 0
    for seed in range(5):
        guide = GrammarMatcher(words.matcher(grammar), SamplingConfig(max_tokens=1, grammar=grammar), (eos,))
        chance, tokens, taken = np.random.default_rng(seed), [], None
        while len(tokens) < 300 and not (taken and taken.ended):
            guide.fill(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[:size])
            taken = guide.take(int(chance.choice(allowed)), room=300)
            assert not taken.error
            tokens += taken.tokens
        if taken.ended:
            assert schema_check(SCHEMA)(words.tokenizer.decode_bytes(tokens).decode())
            ended += 1
    assert ended


@pytest.mark.parametrize("content", [None, "{}", "[", '{"model": 5}'])
def test_a_tokenizer_that_cannot_guide_is_said_so(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(GrammarError, match="cannot be used for guided decoding"):
        vocabulary.load(tmp_path, 10)


def test_special_tokens_are_not_spelled(words):
    """Their names written by a grammar are letters; only a tag means the tokens."""
    matcher = words.matcher(Grammar(kind="choice", text='["<|im_end|>"]'))
    assert matcher.try_consume_tokens([words.specials["<|im_end|>"]]) == 0


@pytest.mark.parametrize(
    "module", ["kvasir_runtime.server.process", "kvasir_runtime.offline.llm", "kvasir_runtime.runner.startup.build"]
)
def test_who_needs_no_grammar_loads_nothing_for_it(module):
    program = f"import sys, {module}; print('llguidance' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
