"""What the rooms of this package raise and say. It imports nothing, so that who needs no grammar pays for none."""


class GrammarError(ValueError):
    """A grammar that cannot be served; one line that says why."""


def one_line(message: str) -> str:
    """llguidance's message without its line breaks and the dump of its state, bounded."""
    text = " ".join(message.split("<non-verbose/>", maxsplit=1)[0].split())
    return text[:400] or "nothing can follow"
