"""The page for those who come from vLLM names options, fields and paths that exist, and every field that differs.

tests/wiring/test_from_vllm.py tries what it says.
"""

import re
from pathlib import Path

from fakes.from_vllm_page import options, rows, section
from kvasir_api.flags import flag
from kvasir_api.options import ServeOptions
from kvasir_runtime.frontend.protocol import generation, ignored_fields

ROOT = Path(__file__).parents[2]
FIELDS = {
    *generation.CompletionBody.model_fields,
    *generation.ChatBody.model_fields,
    *ignored_fields.LABELS,
    *ignored_fields.COMPLETION,
    *ignored_fields.CHAT,
}


def test_every_option_of_ours_exists():
    flags = {one for name in ServeOptions.model_fields for one in re.findall(r"--[a-z-]+", flag(name))}
    flags |= {"--no-prefix-cache", "--no-cuda-graphs"}
    mapped = {option for _, ours, _ in rows("Starting a server") for option in options(ours)}
    assert len(mapped) > 15
    text = section("Starting a server").split("What vLLM has no option for")[1]
    assert (mapped | set(options(text))) - flags == set()


def test_every_option_of_theirs_is_told_what_to_write_or_why_not():
    for theirs, ours, remark in rows("Starting a server"):
        assert options(theirs) or re.search(r"`VLLM_[A-Z_]+=", theirs), theirs  # an option, or a variable
        assert ours or remark, theirs


def test_every_field_that_differs_is_named_and_none_that_does_not_exist():
    named = {name for field, _ in rows("Fields of requests") for name in re.findall(r"`([a-z_]+)`", field)}
    assert named - FIELDS == set()
    vllm = (ROOT / "tests/kvasir_runtime/frontend/protocol/test_generation_vllm_fields.py").read_text()
    restricted = {*ignored_fields.COMPLETION, *ignored_fields.CHAT, *ignored_fields.LABELS} & set(
        re.findall(r"\w+", vllm)
    )
    assert restricted - named - {"user", "model", "metadata", "parallel_tool_calls"} == set()


def test_every_path_is_served():
    sources = "".join(path.read_text() for path in (ROOT / "runtime/kvasir_runtime/server").rglob("*.py"))
    sources += (ROOT / "crds/kvasir_api/http_apis.py").read_text()
    listed = section("Paths").split("Not here:")[0]
    for path in re.findall(r"`(/[a-z0-9_/]+)`", listed):
        assert f'"{path}"' in sources, path
