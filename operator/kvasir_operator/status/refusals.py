"""What a refusal of the API server means: something that no retry cures, in one word, or something that passes.

Called by the loop for what was answered to us, and by the summary for what was answered to a Deployment, of which only
the words are known. The cure is never ours (a larger quota, a right, another spec), and is found by going on
with retries at long intervals, for a quota by one service of each namespace.
"""

import re
from typing import Final

TERMINATING: Final = "because it is being terminated"
"""Nothing is created in a namespace that goes; that the service goes with it is not its fault."""
QUOTA_EXCEEDED: Final = "QuotaExceeded"
REFUSED: Final = frozenset({400, 403, 405, 413, 415, 422})
_QUOTA: Final = re.compile(r"exceeded quota|must specify (limits|requests)\.|failed quota:")
_FORBIDDEN: Final = re.compile(r"is forbidden: ")
_REJECTED: Final = re.compile(
    r"is invalid: |admission webhook .* denied the request|ValidatingAdmissionPolicy .* denied"
)
_NOT_CREATED: Final = re.compile(r'^[Pp]ods? "[^"]*" is (forbidden|invalid): ')
"""How a refusal of a new pod begins. The name was generated for it, and another one at the next try."""


def refusal(words: str, *, status: int = 0) -> str:
    """The reason of Stalled, one of names.REASONS; empty for what may pass by itself.

    words: the message. status: HTTP status of the answer; 0 when only the words are known.
    """
    if TERMINATING in words or (status and status not in REFUSED):
        return ""
    if _QUOTA.search(words):
        return QUOTA_EXCEEDED
    if _REJECTED.search(words):
        return "Rejected"
    if status == 403 or _FORBIDDEN.search(words):
        return "Forbidden"
    return "Rejected" if status else ""


def without_pod_name(words: str, pod: str = "another pod") -> str:
    """The refusal of a new pod without the name of that pod, which does not exist and differs at every retry.

    pod: what stands in its place.
    """
    return _NOT_CREATED.sub(rf"{pod} is \1: ", words)
