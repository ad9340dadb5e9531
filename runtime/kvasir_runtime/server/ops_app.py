"""The ops port, for the control plane and replicas of the same service: probes, the /state document, drain, forgetting,
and what a new replica needs of its peers. What changes something is guarded (`ops_guard`).

Built once by the process. The probes answer from what the process knows, without asking the engine, so a busy engine
never fails one; readiness and liveness fail when the watchdog finds that it does not keep the time it announced.
"""

import asyncio
import logging
from typing import Annotated, Final

from fastapi import FastAPI, Query
from starlette.responses import Response
from starlette.types import ASGIApp

from kvasir_api import ended_requests, names, state
from kvasir_api.prefix_digest import WHOLE
from kvasir_api.sealed_keys import MOST_CHARACTERS
from kvasir_runtime.server.app_state import AppState, ServedModel
from kvasir_runtime.server.json_response import json_response
from kvasir_runtime.server.ops_guard import OpsGuard
from kvasir_runtime.server.peer_prefixes import warmup
from kvasir_runtime.server.peer_prefixes.prefetch import MOST_SHARES, FetchedShare
from kvasir_runtime.server.peer_prefixes.prefetch import prefetch as fetch_prefixes

LOG = logging.getLogger(__name__)
MOST_WAIT_S: Final = 86_400.0
NO_ADDRESS: Final = "an address is http:// or https://, an IP address and a port"


def ops_app(app_state: AppState) -> ASGIApp:
    """The application of the ops port, with its guard."""
    app = FastAPI(title="Kvasir ops", docs_url=None, redoc_url=None, openapi_url=None)
    _add_probes(app, app_state)
    _add_ended_requests(app, app_state)
    _add_drain(app, app_state)
    _add_reset(app, app_state)
    _add_prefixes(app, app_state)
    _add_prefetch(app, app_state)
    _add_continuation_keys(app, app_state)
    return OpsGuard(app, keys=app_state.ops_keys, instance=app_state.instance)


def _add_probes(app: FastAPI, app_state: AppState) -> None:
    @app.get(names.PATH_LIVEZ)
    async def livez() -> Response:
        snapshot, watchdog = app_state.snapshot(), app_state.watchdog
        alive = not app_state.lifecycle.failed and not watchdog.dead
        document = {
            "alive": alive,
            "heartbeat_age_s": snapshot.heartbeat_age_s,
            "expected_s": watchdog.expected_s,
            "step": snapshot.step,
            "reason": f"{names.WATCHDOG}{watchdog.words}" if watchdog.dead else "",
        }
        return json_response(document, status=200 if alive else 503)

    @app.get(names.PATH_READYZ)
    async def readyz() -> Response:
        """A node that computes for node 0 is ready in its way: its clients' port refuses requests."""
        unready = "" if app_state.lifecycle.computes else app_state.unready
        document = {"ready": not unready, "phase": app_state.lifecycle.phase, "reason": unready}
        return json_response(document, status=503 if unready else 200)

    @app.get(names.PATH_STARTUPZ)
    async def startupz(wait_s: Annotated[float, Query(ge=0, le=MOST_WAIT_S)] = 0.0) -> Response:
        """wait_s: hold the answer for so long while the start goes on. A probe that fails leaves a Warning event."""
        lifecycle = app_state.lifecycle
        await lifecycle.until_started(wait_s)
        document = {
            "phase": lifecycle.phase,
            "progress_fraction": lifecycle.fraction,
            "eta_s": lifecycle.eta_s,
            "message": lifecycle.message,
            "download_bytes": lifecycle.download_bytes,
            "downloaded_bytes": lifecycle.downloaded_bytes,
            "reason": lifecycle.failure_reason,
        }
        return json_response(document, status=200 if lifecycle.start_is_over else 503)

    @app.get(names.PATH_STATE)
    async def state_document(
        prefixes_after: Annotated[int | None, Query(ge=WHOLE)] = None,
        instance: Annotated[str, Query(max_length=64)] = "",
    ) -> Response:
        """prefixes_after: list the prefixes that came and went behind a change of an instance; all where it is not this
        process, where the change is too old, and for -1."""
        if prefixes_after is not None and instance != app_state.instance:
            prefixes_after = WHOLE
        return Response(state.encode(app_state.snapshot(prefixes_after)), media_type="application/json")


def _add_ended_requests(app: FastAPI, app_state: AppState) -> None:
    @app.get(names.PATH_ENDED_REQUESTS)
    async def ended_requests_document(
        after: Annotated[int, Query(ge=0)] = 0, instance: Annotated[str, Query(max_length=64)] = ""
    ) -> Response:
        """What requests of gateways took that ended behind a number of an instance; all that are kept of another."""
        document = app_state.ended_requests.after(after, instance)
        return Response(ended_requests.encode(document), media_type="application/json")


def _add_drain(app: FastAPI, app_state: AppState) -> None:
    def document() -> Response:
        snapshot = app_state.snapshot()
        return json_response({"phase": snapshot.phase, "requests": app_state.num_active, "running": snapshot.running})

    @app.post(names.PATH_DRAIN)
    async def drain() -> Response:
        app_state.lifecycle.drain()
        if app_state.served_model is not None:
            app_state.served_model.client.hand_back()
        return document()

    @app.delete(names.PATH_DRAIN)
    async def undrain() -> Response:
        if not app_state.lifecycle.undrain():
            return json_response({"phase": app_state.lifecycle.phase, "error": "the process is leaving"}, status=409)
        return document()


def _add_reset(app: FastAPI, app_state: AppState) -> None:
    @app.post(names.PATH_RESET_PREFIX_CACHE)
    async def reset_prefix_cache(tenant: Annotated[str, Query(max_length=128)] = "") -> Response:
        """tenant: forget what one tenant has sent, and leave the others' prefixes."""
        if app_state.served_model is None:
            return json_response({"error": "no model is loaded"}, status=503)
        owners = app_state.senders.owners(tenant) if tenant else [b""]
        if not owners:
            error = "tenants share the cache" if app_state.options.shared_prefix_cache else "no such tenant"
            return json_response({"error": error, "tenant": tenant}, status=404)
        for owner in owners:
            app_state.served_model.client.forget(owner)
            app_state.hot_prefixes.forget(owner)
        for name in app_state.senders.names(tenant):
            app_state.metrics.tenants.forget(name)
        return json_response({"reset": True})


def _add_prefixes(app: FastAPI, app_state: AppState) -> None:
    @app.get(names.PATH_PREFIXES)
    async def prefixes(top: Annotated[int, Query(ge=1, le=names.MOST_PREFIXES)] = 16) -> Response:
        """Token ids of what clients ask most, with the salts of their requests: for a replica that starts."""
        if app_state.served_model is None:
            return json_response({"error": "no model is loaded"}, status=503)
        tokenizer, hot = app_state.served_model.profile.tokenizer, app_state.hot_prefixes.frozen()
        port = app_state.snapshot().kv_transfer_port
        document = await asyncio.to_thread(warmup.shared, hot, tokenizer, top, port)
        return Response(document, media_type="application/json")

    @app.post(names.PATH_PEERS)
    async def peers(
        address: Annotated[list[str], Query(min_length=1, max_length=names.MOST_PEERS)],
        token: Annotated[list[str] | None, Query(max_length=names.MOST_PEERS)] = None,
    ) -> Response:
        """Ops ports of replicas that serve already, to be asked before this one is ready. token: of the call to each,
        in their order, empty for none; they may be left out."""
        if not all(map(warmup.is_address, address)):
            return json_response({"error": NO_ADDRESS}, status=422)
        if app_state.peers_taken:
            return json_response({"error": "the model is loaded: no peers are asked any more"}, status=409)
        if token and len(token) != len(address):
            return json_response({"error": "there is a token for each address, or none at all"}, status=422)
        app_state.peers = dict(zip(address, token or [""] * len(address), strict=True))
        return json_response({"peers": len(address)})


def _add_prefetch(app: FastAPI, app_state: AppState) -> None:
    @app.post(names.PATH_PREFETCH)
    async def prefetch(
        address: Annotated[str, Query(max_length=64)],
        token: Annotated[str, Query(max_length=1024)] = "",
        share: Annotated[int, Query(ge=0, lt=MOST_SHARES)] = 0,
        shares: Annotated[int, Query(ge=1, le=MOST_SHARES)] = 1,
    ) -> Response:
        """The ops port of a replica that leaves: the blocks of what it is asked most are fetched, beside all else.
        token: of the call to it. share: of so many, that no other replica fetches first."""
        served = app_state.served_model
        if not warmup.is_address(address):
            return json_response({"error": NO_ADDRESS}, status=422)
        if served is None or not app_state.lifecycle.ready or served.client.state.kv_transfer_port <= 0:
            return json_response({"error": "this replica serves nothing, or fetches no blocks"}, status=409)
        if app_state.prefetching is not None and not app_state.prefetching.done():
            return json_response({"error": "blocks of another replica are being fetched"}, status=409)
        own = FetchedShare(index=share, of=shares)
        app_state.prefetching = asyncio.create_task(_prefetch(address, token, own, app_state, served))
        return json_response({"prefetch": address}, status=202)


async def _prefetch(address: str, token: str, share: FetchedShare, app_state: AppState, served: ServedModel) -> None:
    facts = served.client.ready
    assert facts is not None, "it serves"
    try:
        done = await fetch_prefixes(
            {address: token},
            served.client,
            facts,
            served.profile.tokenizer,
            share=share,
            is_wanted=lambda: app_state.lifecycle.ready,
            tls_dir=app_state.options.tls_dir,
        )
    except Exception:
        LOG.exception("fetching what a replica that leaves is asked most failed; it is computed when it is needed")
        return
    words = "fetched %d tokens of %d of %d prefixes from the replica at %s, which leaves, in %.1f s"
    LOG.info(words, done.tokens, done.prefixes, done.offered, address, done.seconds)


def _add_continuation_keys(app: FastAPI, app_state: AppState) -> None:
    @app.post(names.PATH_CONTINUATION_KEYS)
    async def continuation_keys(sealed: Annotated[str, Query(max_length=MOST_CHARACTERS)]) -> Response:
        """Keys of continuation tokens, sealed to the key in `/state`: those of the service's other replicas."""
        try:
            app_state.continuation_keys.receive(sealed)
        except ValueError as error:
            return json_response({"error": str(error)}, status=422)
        return json_response({"continuation_keys": app_state.continuation_keys.digest})
