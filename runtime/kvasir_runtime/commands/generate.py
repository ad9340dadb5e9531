"""`kvasir generate MODEL PROMPT`: one answer of a local model, printed as it comes, without a server."""

import json
import sys
from typing import Any, Final

import click

from kvasir_api.option_parser import parse
from kvasir_runtime.commands import engine_options

CHAT_NOTE: Final = "this model has a chat template; --chat puts the prompt into it"


def _generate(model: str, prompt: str, chat: bool, as_json: bool, **values: Any) -> None:
    """Continue PROMPT with MODEL and print the text; "-" reads the prompt from standard input.

    MODEL is a directory, a .gguf file or a hub name. With --chat the prompt is a user's message, put into the model's
    chat template.

    \b
      kvasir generate ./model "Once upon a time" --max-tokens 64 --temperature 0
      git diff | kvasir generate --chat Qwen/Qwen3-0.6B -
    """
    from kvasir_runtime import LLM, EngineError, PromptError, SamplingParams

    text = sys.stdin.read() if prompt == "-" else prompt
    engine = engine_options.taken(model, values)
    given: dict[str, Any] = {
        name: list(value) if name == "stop" else value for name, value in values.items() if name not in engine
    }
    params = parse(SamplingParams, {name: value for name, value in given.items() if value not in (None, [])})
    try:
        asked: Any = [{"role": "user", "content": text}] if chat else text
        with LLM(model, **engine) as llm:
            if llm.has_chat_template and not chat:
                click.echo(f"note: {CHAT_NOTE}", err=True)
            if as_json:
                (output,) = llm.chat(asked, params) if chat else llm.generate(asked, params)
                document = {
                    "text": output.text,
                    "finish_reason": output.outputs[0].finish_reason,
                    "prompt_tokens": len(output.prompt_token_ids),
                    "completion_tokens": len(output.outputs[0].token_ids),
                }
                click.echo(json.dumps(document))
                return
            for piece in llm.stream(asked, params, chat=chat):
                click.echo(piece, nl=False)
            click.echo()
    except (EngineError, PromptError, ValueError) as error:
        raise click.ClickException(str(error)) from error


_SHARE: Final = click.FloatRange(0, 1)

generate = click.Command(
    "generate",
    callback=_generate,
    help=_generate.__doc__,
    short_help="Print one answer of a local model.",
    params=[
        click.Argument(["model"]),
        click.Argument(["prompt"]),
        click.Option(["--chat"], is_flag=True, help="Apply the model's chat template to the prompt."),
        click.Option(
            ["--max-tokens"],
            type=click.IntRange(1),
            default=256,
            show_default=True,
            help="Tokens of the answer, at most.",
        ),
        click.Option(["--temperature"], type=click.FloatRange(0, 2), help="0 is greedy. Default: 1."),
        click.Option(
            ["--top-p"], type=_SHARE, help="Draw from the likeliest tokens that make up this share. Default: 1."
        ),
        click.Option(
            ["--top-k"],
            type=click.IntRange(-1),
            help="Draw from so many of the likeliest tokens; 0 means all. Default: 0.",
        ),
        click.Option(
            ["--min-p"], type=_SHARE, help="Leave out tokens less likely than this share of the likeliest. Default: 0."
        ),
        click.Option(["--seed"], type=int, help="The same seed gives the same answer. Default: random."),
        click.Option(["--stop"], multiple=True, metavar="TEXT", help="End before this text; may be repeated."),
        click.Option(["--ignore-eos"], is_flag=True, default=None, help="Go on after the model's end-of-sequence."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document with text, reason and counts."),
        *engine_options.options(),
    ],
)
