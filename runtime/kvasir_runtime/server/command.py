"""`kvasir serve MODEL`: the command that serves one model. Options come from their declaration."""

import asyncio
import gc
import os
from typing import TYPE_CHECKING, Any

import click

from kvasir_runtime.client.engine_process import ENGINE_COMMAND, EngineProcess

if TYPE_CHECKING:
    from kvasir_api.options import ServeOptions
    from kvasir_runtime.server.ports import Listeners

KEY_VARIABLE = "KVASIR_API_KEY"


def main(engine_command: tuple[str, ...] | None = None) -> None:
    """The command with another engine process; for tests, and for engines that live elsewhere."""
    serve.main(obj=engine_command)


class ServeCommand(click.Command):
    """Starts the engine process before the declaration of options is imported: the engine imports torch meanwhile."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context with the values of all options; its object is the engine process, which the command ends."""
        command = extra.pop("obj", None) or (parent.obj if parent else None) or ENGINE_COMMAND
        child = EngineProcess(command)
        try:
            if not {"-h", "--help"}.intersection(args):
                child.begin()
            return super().make_context(info_name, args, parent, obj=child, **extra)
        except BaseException:
            child.abandon()
            raise

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The model and one option for each field of its declaration."""
        if not self.params:
            from kvasir_api.option_parser import click_options
            from kvasir_api.options import ServeOptions

            self.params = [click.Argument(["model"]), *click_options(ServeOptions, skip=frozenset({"model"}))]
        return super().get_params(ctx)


@click.command(cls=ServeCommand)
@click.pass_obj
def serve(child: EngineProcess, /, **values: Any) -> None:
    """Serve MODEL: a directory with a Hugging Face checkpoint, a .gguf file, or a name on the hub.

    Clients find an OpenAI API on --port; probes and /state are on --ops-port. SIGTERM and ctrl-C finish what runs and
    leave; the second one stops at once.
    """
    from kvasir_api.option_parser import parse
    from kvasir_api.options import ServeOptions

    try:
        if key := os.environ.get(KEY_VARIABLE):
            values["api_key"] = (*values.get("api_key", ()), *key.split(","))
        raise SystemExit(run(parse(ServeOptions, values), child))
    finally:
        child.abandon()


def run(options: "ServeOptions", child: EngineProcess) -> int:
    """Serve until the end; the exit code. Imports are late, so that --help is quick."""
    from kvasir_runtime import malloc
    from kvasir_runtime.nodes.listening import PortError
    from kvasir_runtime.server import ports

    malloc.share_arenas()
    malloc.keep_freed()
    try:
        listeners = ports.opened(options.host, options.port, options.ops_port, options.tls_dir)
    except PortError as error:
        return _failed(options, str(error))
    gc.disable()  # what is imported now stays: looking for garbage in it costs a sixth of the time
    return _served(options, child, listeners)


def _failed(options: "ServeOptions", why: str) -> int:
    from kvasir_runtime import log_config
    from kvasir_runtime.server.console import Console

    log_config.configure(options.log_format)
    return Console(options.log_format).failed(why)


def _served(options: "ServeOptions", child: EngineProcess, listeners: "Listeners") -> int:
    import uvloop

    from kvasir_runtime import log_config
    from kvasir_runtime.server.console import Console
    from kvasir_runtime.server.process import ServeProcess

    gc.freeze()
    gc.enable()
    log_config.configure(options.log_format)
    console = Console(options.log_format)

    async def live() -> int:
        return await ServeProcess(options, console, child=child, listeners=listeners).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(live())
