"""The routes for embeddings, rerankings and scores. Thin: they refuse early and prepare in a thread."""

import asyncio
import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.pooling.protocol import EmbeddingBody, RerankBody, ScoreBody
from kvasir_runtime.server.api.pooling import prepare
from kvasir_runtime.server.api.pooling.prepare import PooledRequest
from kvasir_runtime.server.api.pooling.protocol import RERANK_PATHS, SCORE_PATHS
from kvasir_runtime.server.api.pooling.response import PooledResponse
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.body_reader import read_body
from kvasir_runtime.server.generation import check_queue
from kvasir_runtime.server.json_response import body_schema
from kvasir_runtime.wire import EngineOutput


def add(app: FastAPI, app_state: AppState) -> None:
    """Add them to the http port."""

    @app.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingBody))
    async def embeddings(request: Request) -> Response:
        return await pooled(request, app_state, prepare.embeddings)

    async def rerank(request: Request) -> Response:
        return await pooled(request, app_state, prepare.ranking)

    async def score(request: Request) -> Response:
        return await pooled(request, app_state, prepare.scores)

    for path in RERANK_PATHS:
        app.post(path, openapi_extra=body_schema(RerankBody))(rerank)
    for path in SCORE_PATHS:
        app.post(path, openapi_extra=body_schema(ScoreBody))(score)


async def pooled(
    request: Request, app_state: AppState, prepared_from: Callable[[bytes, ModelProfile], PooledRequest]
) -> PooledResponse:
    """One answer, from the raw body on. Raises Refused."""
    arrived = app_state.clock()
    served_model = app_state.ready_model()
    check_queue(app_state, served_model, 1)
    raw = await read_body(request, app_state.options.max_body_bytes)
    loop = asyncio.get_running_loop()
    app_state.begin_request()
    app_state.num_preparing += 1
    try:
        try:
            prepared = await loop.run_in_executor(app_state.threads, prepared_from, raw, served_model.profile)
        finally:
            app_state.num_preparing -= 1
        app_state.ready_model()
        check_queue(app_state, served_model, min(len(prepared.requests), served_model.max_sequences))
    except BaseException:
        app_state.end_request()
        raise

    async def finish(events: Sequence[EngineOutput]) -> bytes:
        return await loop.run_in_executor(app_state.threads, prepared.finish, events, int(time.time()))

    return PooledResponse(
        prepared.requests,
        served_model.client,
        finish,
        answer_id=prepared.answer_id,
        model=app_state.names[0],
        window=served_model.max_sequences,
        meter=app_state.metrics,
        arrived=arrived,
        on_end=app_state.end_request,
        running=app_state.registry,
        clock=app_state.clock,
    )
