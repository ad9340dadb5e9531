"""Defaults of sampling that a checkpoint has: generation_config.json, subject to --generation-config.

Read once at start; prepare.py applies them to the fields that a body does not have. Ids that end an answer are read by
the engine from the same file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend.protocol.sampling_fields import SamplingFields
from kvasir_runtime.tokenizer_files.files import read_json

FILE: Final = "generation_config.json"
FIELDS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""The file's keys that are taken, and what they are called in a request; the same as vLLM takes."""

_Body = TypeVar("_Body", bound=SamplingFields)


def generation_defaults(model: Path, options: ServeOptions) -> dict[str, Any]:
    """By the names of a request's fields; {} where there are none. Raises ModelError for a value out of bounds."""
    if options.generation_config == "none" or not model.is_dir():
        return {}
    found_in_file = read_json(model / FILE, missing_ok=True)
    found = {ours: found_in_file[theirs] for theirs, ours in FIELDS.items() if found_in_file.get(theirs) is not None}
    try:
        SamplingFields.model_validate(found)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        place = ".".join(map(str, first["loc"]))
        message = f"{model / FILE}: {place}: {first['msg']}; start with --generation-config none to go without it"
        raise ModelError(message) from error
    return found


def applied(body: _Body, defaults: Mapping[str, Any]) -> _Body:
    """The body with the defaults of the fields that it does not have, except max_tokens, which depends on the
    prompt."""
    set_already = {*body.model_fields_set, "max_tokens"}
    missing = {name: value for name, value in defaults.items() if name not in set_already}
    return body.model_copy(update=missing) if missing else body
