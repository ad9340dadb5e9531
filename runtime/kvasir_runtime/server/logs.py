"""Log lines of the API process, on standard error in one of the forms of `loglines`.

Set up once by the process. What is logged are facts about requests and phases; prompts, answers and keys are not given
to it in the first place.
"""

import logging
import sys
from typing import Literal, TextIO

from kvasir_runtime.loglines import JsonFormatter, TextFormatter


def configure(form: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Route all logging to one stream (standard error). uvicorn's own lines are kept for warnings only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # our edge logs failures, with the request's id
    logging.getLogger("httpx").setLevel(logging.WARNING)
