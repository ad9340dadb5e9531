"""`python -m kvasir_runtime COMMAND`: the `kvasir` command, where that is not on the path."""

from kvasir_api.command import main

if __name__ == "__main__":
    main(prog_name="kvasir")
