"""`python -m kvasir_runtime serve MODEL`: the runtime's part of the `kvasir` command, where that is not on the path."""

import click

from kvasir_runtime.server.command import serve

main = click.Group("kvasir", commands=[serve])

if __name__ == "__main__":
    main()
