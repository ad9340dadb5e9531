"""The exceptions that carry an OpenAI-shaped error from where it is known to the HTTP edge."""

from kvasir_api.openai_errors import ApiError


class Refused(Exception):
    """The request cannot be served; error is what the client is told."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class Failed(Exception):
    """The engine could not finish the request; error is what the client is told."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error
