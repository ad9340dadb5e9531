"""What one answer under a grammar may cost."""

from llguidance import LLParserLimits


def parser_limits() -> LLParserLimits:
    """What one answer may cost: about 25 ms a step and 25 MB, measured with 150,000 tokens and counted repetitions.

    The library's own limits, but for the states of the lexer, of which it would permit 250,000.
    """
    return LLParserLimits(max_lexer_states=100_000, verbose_errors=False)
