"""`kvasir bench --url URL`: how fast a server is, as its clients see it; `--accuracy MODEL`: what fewer bits cost."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from kvasir_runtime.bench import workload
from kvasir_runtime.bench.workload import PRESETS, Workload
from kvasir_runtime.commands.openai_client import ServerError, base_url


class Lengths(click.ParamType[tuple[int, int]]):
    """128 or 16-512."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Least and most."""
        if isinstance(value, tuple):
            return value
        try:
            return workload.lengths(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("bench", short_help="Measure how fast a server is, or what fewer bits cost.")
@click.option("--url", metavar="URL", help="An OpenAI-compatible server, with or without /v1.")
@click.option("--accuracy", metavar="MODEL", help="Compare logits of MODEL in 8 and 4 bits with bfloat16; no server.")
@click.option(
    "--text", type=click.Path(dir_okay=False), metavar="FILE", help="Text to compare on.  [default: built in]"
)
@click.option(
    "--text-tokens",
    type=click.IntRange(2, 65_536),
    default=1024,
    show_default=True,
    help="Tokens of the text to compare on; the logits of all of them are held.",
)
@click.option("--model", default="", help="The model's name there.  [default: the first it lists]")
@click.option("--api-key", default="", help="Key to send.  [default: the variable OPENAI_API_KEY]")
@click.option("--workload", "preset", type=click.Choice(list(PRESETS)), help="Numbers to begin with; see above.")
@click.option("--requests", type=click.IntRange(1, 100_000), help="How many in all.  [default: 64]")
@click.option("--concurrency", type=click.IntRange(1, 4096), help="How many at a time.  [default: 8]")
@click.option("--prompt-tokens", type=Lengths(), metavar="N|N-M", help="Words of a prompt.  [default: 128]")
@click.option("--output-tokens", type=Lengths(), metavar="N|N-M", help="Tokens of an answer.  [default: 128]")
@click.option("--shared-prefix", type=click.IntRange(0, 1_000_000), help="Words before that are alike.  [default: 0]")
@click.option(
    "--warm-up", type=click.IntRange(0, 100), default=1, show_default=True, help="Requests before, not counted."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed draws other words.")
@click.option("--chat", is_flag=True, help="Send chats instead of completions.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="0: greedy answers.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Sent where it is given.")
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    show_default=True,
    help="Send ignore_eos for full lengths; vLLM and Kvasir take this field, OpenAI's own servers refuse it.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(1, 86_400),
    default=600,
    show_default=True,
    help="End the measurement after this time.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write the figures to FILE.",
    metavar="FILE",
)
@click.option("--plot", is_flag=True, help="Draw the distribution of the times to the first token.")
def bench(
    url: str | None,
    accuracy: str | None,
    text: str | None,
    text_tokens: int,
    model: str,
    api_key: str,
    warm_up: int,
    seed: int,
    chat: bool,
    temperature: float,
    top_p: float | None,
    ignore_eos: bool,
    max_seconds: float,
    json_file: str | None,
    plot: bool,
    **numbers: Any,
) -> None:
    """Measure a server: time to first token (TTFT), time per output token (TPOT), between pieces (ITL), throughput.

    \b
    Workloads, of which single numbers can be changed by their options:
      w1  3 requests one at a time, prompt 128, answer 128
      w2  32 at once, prompts 16-512, answers 16-256
      w3  32 requests, 8 at a time, shared prefix 1024, prompt 64, answer 32
      w4  a prompt of 4096 cold, then once more with other 64 words at its end

    \b
      kvasir bench --url http://127.0.0.1:8000 --requests 200 --concurrency 32
      kvasir bench --url http://127.0.0.1:8000 --workload w3 --json figures.json

    The exit code is 1 when a request failed.

    \b
    With --accuracy: how often the likeliest next token agrees with that of bfloat16, KL divergence (nats), perplexity.
      kvasir bench --accuracy ./model --text sample.txt --json accuracy.json
    """
    if (url is None) == (accuracy is None):
        raise click.UsageError("give either --url or --accuracy")
    if accuracy is not None:
        raise SystemExit(_compare(accuracy, text, text_tokens, json_file))
    assert url is not None
    chosen = numbered(numbers.pop("preset"), numbers)
    extra = {"temperature": temperature, "top_p": top_p, "ignore_eos": True if ignore_eos else None}
    settings = {"warm_up": warm_up, "seed": seed, "chat": chat, "extra": extra, "max_seconds": max_seconds}
    key = api_key or os.environ.get("OPENAI_API_KEY", "")
    metrics, times = asyncio.run(_measure(url, model, key, chosen, settings))
    from kvasir_runtime.bench import report

    document = json.dumps(metrics.document() | {"ttft_values_s": times}, indent=2)
    if json_file == "-":
        click.echo(document)
    else:
        click.echo(report.table(metrics))
        if plot:
            click.echo("\n" + report.plot("time to first token", times))
    if json_file not in (None, "-"):
        Path(str(json_file)).write_text(document + "\n")
    raise SystemExit(1 if metrics.failed else 0)


def _compare(model: str, text: str | None, num_tokens: int, json_file: str | None) -> int:
    """The exit code; the table grows as variants come."""
    from kvasir_runtime.bench import accuracy

    found = []
    try:
        job = accuracy.job(model, accuracy.text_of(text), num_tokens)
        for each in accuracy.measured(job):
            found.append(each)
            click.echo(f"{each.name} done, {len(found)} of {len(job.variants) + 1}", err=True)
    except accuracy.AccuracyError as error:
        raise click.ClickException(str(error)) from error
    document = json.dumps(accuracy.document(job, found), indent=2)
    click.echo(document if json_file == "-" else accuracy.table(found))
    if json_file not in (None, "-"):
        Path(str(json_file)).write_text(document + "\n")
    return 0


def numbered(preset: str | None, given: dict[str, Any]) -> Workload:
    """A workload: the preset's numbers, else the defaults, with those that were given in their place."""
    base = (
        PRESETS[preset]
        if preset
        else Workload(requests=64, concurrency=8, prompt_tokens=(128, 128), output_tokens=(128, 128))
    )

    def of(option: str, value: Any) -> Any:
        return value if given.get(option) is None else given[option]

    return Workload(
        requests=of("requests", base.requests),
        concurrency=of("concurrency", base.concurrency),
        prompt_tokens=of("prompt_tokens", base.prompt_tokens),
        output_tokens=of("output_tokens", base.output_tokens),
        shared_tokens=of("shared_prefix", base.shared_tokens),
    )


async def _measure(
    url: str, model: str, api_key: str, chosen: Workload, settings: dict[str, Any]
) -> tuple[Any, list[float]]:
    import aiohttp
    import msgspec
    from rich.console import Console
    from rich.progress import Progress

    from kvasir_runtime.bench import load_generator
    from kvasir_runtime.bench.metrics import RequestResult, benchmark_metrics

    try:
        base = base_url(url)
        listed = [model] if model else await load_generator.models(base, api_key)
    except ServerError as error:
        raise click.UsageError(str(error)) from error
    except (aiohttp.ClientError, OSError, ValueError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{url} lists no models: {load_generator.reason(error)}") from error
    if not listed:
        raise click.ClickException(f"{url} lists no model; set --model")
    target = load_generator.TargetServer(
        base_url=base,
        model=listed[0],
        api_key=api_key,
        chat=settings["chat"],
        extra={name: value for name, value in settings["extra"].items() if value is not None},
        timeout_s=settings["max_seconds"],
    )
    first = Workload(
        requests=settings["warm_up"], concurrency=1, prompt_tokens=chosen.prompt_tokens, output_tokens=(8, 8)
    )
    await load_generator.run(target, workload.requests(first, settings["seed"] - 1), 1)
    tasks = workload.requests(chosen, settings["seed"])
    with Progress(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task(f"{chosen.requests} requests, {chosen.concurrency} at a time", total=len(tasks))

        def advance(_: RequestResult) -> None:
            bar.advance(shown)

        answers, wall_s = await load_generator.run(target, tasks, chosen.concurrency, advance)
    return benchmark_metrics(answers, wall_s), [answer.ttft_s for answer in answers if not answer.error]
