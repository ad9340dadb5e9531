"""Errors of the API server, as the classes that a caller distinguishes."""


class KubeError(Exception):
    """The API server refused or could not be reached.

    status: HTTP status, 0 without an answer. reason: metav1.Status.reason. retry_after_s: Retry-After, 0 without it.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def permanent(self) -> bool:
        """Whether a retry cannot succeed: the object is invalid, forbidden or too large."""
        return self.status in (400, 403, 405, 413, 415, 422)


class NotFoundError(KubeError):
    """There is no such object, or no such kind."""


class ConflictError(KubeError):
    """The object changed meanwhile, exists already, or is another one of the same name."""


class ExpiredError(KubeError):
    """The resourceVersion of a list or watch is too old: list again."""
