"""The routes for embeddings, rerankings and scores."""

import asyncio
import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.pooling.protocol import EmbeddingBody, RerankBody, ScoreBody
from kvasir_runtime.frontend.protocol.validation import Raw
from kvasir_runtime.server.api import serving
from kvasir_runtime.server.api.pooling import prepare
from kvasir_runtime.server.api.pooling.prepare import PooledRequest
from kvasir_runtime.server.api.pooling.protocol import RERANK_PATHS, SCORE_PATHS
from kvasir_runtime.server.api.pooling.response import PooledResponse
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.json_response import body_schema
from kvasir_runtime.wire import EngineOutput


def add(app: FastAPI, app_state: AppState) -> None:
    """Add them to the http port."""

    @app.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingBody))
    async def embeddings(request: Request) -> Response:
        return await respond(request, app_state, prepare.embeddings)

    async def rerank(request: Request) -> Response:
        return await respond(request, app_state, prepare.ranking)

    async def score(request: Request) -> Response:
        return await respond(request, app_state, prepare.scores)

    for path in RERANK_PATHS:
        app.post(path, openapi_extra=body_schema(RerankBody))(rerank)
    for path in SCORE_PATHS:
        app.post(path, openapi_extra=body_schema(ScoreBody))(score)


async def respond(
    request: Request, app_state: AppState, prepare: Callable[[Raw, ModelProfile], PooledRequest]
) -> PooledResponse:
    """The answer to a request, ready to be sent. prepare runs in a thread. Raises Refused."""
    arrived = app_state.clock()

    def prepared(raw: Raw, profile: ModelProfile) -> PooledRequest:
        return prepare(raw, profile).sent_by(profile.sender)

    pooled, served_model = await serving.admit(
        request,
        app_state,
        lambda raw, served_model: serving.in_thread(request, app_state, prepared, raw, served_model.profile),
        lambda pooled, served_model: min(len(pooled.requests), served_model.max_sequences),
    )

    async def finish(outputs: Sequence[EngineOutput]) -> bytes:
        return await asyncio.to_thread(pooled.finish, outputs, int(time.time()))

    return PooledResponse(
        pooled,
        serving.serving_context(request, app_state, served_model),
        finish,
        model=app_state.names[0],
        window=served_model.max_sequences,
        arrived=arrived,
        on_end=app_state.end_request,
    )
