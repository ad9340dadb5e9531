"""The contract: everything that two processes of Kvasir must agree on is declared here, once."""

__version__ = "0.1.0"
