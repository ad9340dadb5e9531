"""`python -m kvasir_runtime COMMAND`: the runtime's part of the `kvasir` command, where that is not on the path."""

from kvasir_api.command import PlainGroup
from kvasir_runtime.commands.bench import bench
from kvasir_runtime.commands.chat import chat
from kvasir_runtime.commands.generate import generate
from kvasir_runtime.commands.models import models
from kvasir_runtime.commands.plan import plan
from kvasir_runtime.commands.run_batch import run_batch
from kvasir_runtime.server.command import serve

main = PlainGroup("kvasir", commands=[serve, generate, chat, bench, run_batch, plan, models])

if __name__ == "__main__":
    main()
