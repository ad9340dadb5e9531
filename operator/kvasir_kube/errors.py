"""What can go wrong between us and the API server, as three words a caller can act upon."""


class KubeError(Exception):
    """The API server refused or could not be reached.

    status: HTTP status, 0 when there was no answer. reason: the server's machine word. retry_after_s: what the server
    asked for, 0 when it asked for nothing.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def permanent(self) -> bool:
        """Whether the same request will be refused again: the object is invalid, not allowed or too large."""
        return self.status in (400, 403, 405, 413, 415, 422)


class NotFoundError(KubeError):
    """There is no such object, or no such kind."""


class ConflictError(KubeError):
    """The object changed meanwhile, exists already, or is another one of the same name."""


class ExpiredError(KubeError):
    """The resourceVersion of a list or watch is too old: list again."""
