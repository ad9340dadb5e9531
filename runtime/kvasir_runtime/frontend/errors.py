"""Errors of a request, in OpenAI's terms: raised where they are known, written by the server or raised in Python."""

from kvasir_api.openai_errors import ApiError


class Refused(Exception):
    """The request cannot be served. error: for the client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class GenerationFailed(Exception):
    """The engine could not finish the request. error: for the client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error
