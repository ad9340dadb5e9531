"""What the rooms of this package raise."""


class GrammarError(ValueError):
    """A grammar that cannot be served; one line that goes on after "the grammar:"."""
