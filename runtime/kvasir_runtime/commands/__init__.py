"""Subcommands of `kvasir` for people at a terminal. Modules import nothing slow until they run: --help is quick."""
