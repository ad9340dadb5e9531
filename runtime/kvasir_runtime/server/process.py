"""The life of the API process: serve the open ports, find the model, start the engine, serve, drain, end with a code.

Started by the command. It is the only place that knows signals and both the apps and the engine's child process.
Exit codes: 0 after a drain, 1 when the start or the engine failed or after a second signal, 3 when the device
failed, 4 when the engine stood still.
"""

import asyncio
import gc
import hashlib
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from kvasir_api import __version__, device_faults, names, state
from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.client import output_check
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.engine_process import EngineProcess
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import StartError
from kvasir_runtime.frontend import tokenizer
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.parsing.formats import parser_names
from kvasir_runtime.frontend.pooling.capabilities import capabilities
from kvasir_runtime.frontend.structured_outputs.grammar_validator import GrammarValidator
from kvasir_runtime.server import auth, download, key_file, listen, periodic, ports
from kvasir_runtime.server.app import http_app
from kvasir_runtime.server.app_state import MOST_INVALID, AppState, ServedModel
from kvasir_runtime.server.banner import StartSummary
from kvasir_runtime.server.console import Console
from kvasir_runtime.server.continuation_keys import PeerKeySender
from kvasir_runtime.server.lifecycle import EndSignals
from kvasir_runtime.server.observability import tracing
from kvasir_runtime.server.ops_app import ops_app
from kvasir_runtime.server.peer_prefixes import warmup
from kvasir_runtime.server.watchdog import LOOK_S
from kvasir_runtime.wire import EngineFacts

log = logging.getLogger(__name__)
LAST_WORDS_S: Final = 0.2
CONTINUED_S: Final = 2.0
"""So much longer a dead engine may take to send a message, as after SIGCONT; the liveness probe fails meanwhile."""
CHECK_S: Final = 1.0
STOPPED_S: Final = 10.0
"""A node behind the first whose engine is stopped for so long is ended: node 0 has ended the model long before."""
PEER_KEYS_S: Final = 1.0
BEFORE_A_STALL_S: Final = 60.0
"""A fault that the driver reported so long before the engine's last message may be why it stands still."""
FLUSH_S: Final = 5.0
SECRET_OPTIONS: Final = frozenset({"api_key", "api_key_file", "model"})


class ServeProcess:
    """One run. child: the engine, begun or not; it is ended here. listeners: its ports, open."""

    def __init__(
        self, options: ServeOptions, console: Console, *, child: EngineProcess, listeners: ports.Listeners
    ) -> None:
        names = options.served_model_name or (source.name_of(options.model),)
        self._options = options
        self._console = console
        self._app_state = AppState(options=options, names=names, created=int(time.time()))
        self._child, self._listeners = child, listeners
        self._client: EngineClient | None = None
        self._model: download.DownloadedModel | None = None  # the engine may look into its folder again
        self._tasks: list[asyncio.Task[None]] = []
        self._signals = EndSignals(self._app_state.lifecycle, options.drain_timeout)
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._dead_for_s = 0.0  # the engine, by looks of the watchdog
        self._began = child.began_s or time.monotonic()

    async def run(self) -> int:
        """Serve until a signal or a failure; the exit code."""
        http, ops, tls = self._listeners
        self._addresses = ports.address_of(http, tls=tls is not None), ports.address_of(ops, tls=tls is not None)
        self._console.opened(*self._addresses)
        context = tls.context if tls else None
        servers = [
            listen.server(http_app(self._app_state), forwarded=True, tls=context),
            listen.server(ops_app(self._app_state), forwarded=False, tls=context),
        ]
        serving = [
            asyncio.create_task(server.serve(sockets=[listener]))
            for server, listener in zip(servers, (http, ops), strict=True)
        ]
        self._signals.catch()
        try:
            return await self._live()
        finally:
            self._app_state.lifecycle.abandon_start()
            for server in servers:
                server.should_exit = True
                server.force_exit = self._signals.stop.is_set()
            await asyncio.wait(serving, timeout=FLUSH_S)
            if self._app_state.served_model is not None:
                await self._app_state.served_model.grammar_validator.close()
            await self._end_engine()
            if self._app_state.tracing is not None:
                await asyncio.to_thread(self._app_state.tracing.close)
            self._console.close()

    async def _live(self) -> int:
        try:
            started = await self._first(asyncio.create_task(self._start()), self._signals.leave)
        except (StartError, EngineDeadError) as error:
            message = source.with_user_name(str(error), self._options.model)
            refused = isinstance(error, StartError) or error.refusal
            self._app_state.lifecycle.fail_start(message, _reason(message, refused=refused))
            if refused:
                self._console.refused(message)
                return names.EXIT_REFUSED
            return self._console.failed(message)
        if not started:
            return 0  # stopped while loading: nothing is running
        leave = asyncio.create_task(self._signals.leave.wait())
        either: set[asyncio.Future[Any]] = {leave, self._dead}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        leave.cancel()
        if self._dead.done():
            return await self._engine_died()
        return await self._drain()

    async def _start(self) -> None:
        """From nothing to ready. Raises StartError or EngineDeadError."""
        app_state, console = self._app_state, self._console
        app_state.lifecycle.advance("starting", message="finding the model")
        console.show("starting", 0.0, message="finding the model")
        given = self._options
        app_state.tracing = tracing.opened(given.otlp_traces_endpoint, app_state.names[0], given.otlp_sample_percent)
        await self._load_keys()
        asked = time.monotonic()
        self._model = model = await download.begun(given, app_state.lifecycle, console)
        found = time.monotonic()
        console.found(*self._addresses, note=tokenizer.text_part(model.folder))
        loading = asyncio.create_task(download.load(model, given))
        try:
            ready = await self._start_engine(model.folder, loading)
            files = await loading
        finally:
            loading.cancel()
            model.arrival.abandon()
        folder, loaded = files.folder, files.tokenizer
        assert self._client is not None
        app_state.served_model = ServedModel(
            profile=ModelProfile(
                names=app_state.names,
                tokenizer=loaded,
                max_context=ready.max_cached_tokens,
                capabilities=capabilities(folder, self._options, ready, loaded),
                defaults=files.defaults,
                ready=ready,
                parsers=parser_names(loaded.template_text, given.tool_call_parser, given.reasoning_parser),
                instance=app_state.instance,
                path=given.model,
                hash_salt=self._client.hash_salt,
            ),
            client=self._client,
            max_sequences=ready.max_sequences,
            fingerprint=_fingerprint(app_state.names[0], ready),
            start=self._startup_seconds(ready, weights_s=found - asked),
            folder=folder,
            digest=files.digest,
            grammar_validator=GrammarValidator(folder, loaded.vocab_size, observe=app_state.metrics.grammar),
        )
        app_state.metrics.opened(ready, self._options)
        gc.freeze()  # what was loaded stays; a collection in the middle of streams need not look at it again
        await self._warm_prefixes(app_state.served_model, ready)
        await self._unlocked()
        app_state.lifecycle.advance("ready", 1.0, 0.0)
        http, ops = self._addresses
        console.ready(
            ready,
            StartSummary(
                names=app_state.names,
                folder=str(folder),
                http=http,
                ops=ops,
                total_s=time.monotonic() - self._began,
                find_s=found - self._began,
            ),
        )

    def _startup_seconds(self, ready: EngineFacts, *, weights_s: float) -> state.StartupSeconds:
        """Of the start until now: what was not measured apart are the processes and the tokenizer."""
        others_s = weights_s + ready.load_s + ready.warm_s
        return state.StartupSeconds(
            process_s=max(0.0, time.monotonic() - self._began - others_s),
            weights_s=weights_s,
            load_s=ready.load_s,
            warm_s=ready.warm_s,
        )

    async def _warm_prefixes(self, served: ServedModel, ready: EngineFacts) -> None:
        """Compute what peers are asked most, where the operator has named some."""
        limit_s, peers = self._options.prefix_warmup_seconds, self._app_state.take_peers()
        if not peers or not limit_s or not self._options.prefix_cache or ready.head != "vocabulary":
            return
        self._app_state.lifecycle.advance("warming", 1.0, message="computing what other replicas are asked most")
        try:
            tls_dir, loaded = self._options.tls_dir, served.profile.tokenizer
            warmed = await warmup.warm(peers, served.client, ready, loaded, limit_s=limit_s, tls_dir=tls_dir)
        except Exception:
            log.exception("computing what other replicas are asked most failed; this one starts without")
            return
        served.start = msgspec.structs.replace(served.start, warm_s=served.start.warm_s + warmed.seconds)
        log.info("%s", warmed.words)

    async def _unlocked(self) -> None:
        """A replica of a service that has no key yet is not ready: it would take the place of one that serves.

        Raises EngineDeadError where the engine is dead by then.
        """
        if why := self._app_state.api_keys.locked:
            self._app_state.lifecycle.advance("warming", 1.0, message=why)
            self._console.show("waiting for keys", 1.0, message=why)
        while self._app_state.api_keys.locked and not self._dead.done():  # noqa: ASYNC110 - the watch beside it polls too
            await asyncio.sleep(auth.RELOAD_INTERVAL_S)
        if self._client is not None and self._client.failure is not None:
            raise EngineDeadError(self._client.failure)

    async def _load_keys(self) -> None:
        """Load the keys of clients, the ops port and continuations, and follow all files. Raises ModelError."""
        if certificate := self._listeners.tls:
            self._tasks.append(asyncio.create_task(certificate.follow()))
        api_keys = self._app_state.api_keys
        await asyncio.to_thread(api_keys.load, may_come=bool(self._options.pod_revision))
        if api_keys.watched:
            self._tasks.append(asyncio.create_task(auth.watch(api_keys)))
        for keys in (self._app_state.ops_keys, self._app_state.continuation_keys):
            if keys.watched:
                await asyncio.to_thread(keys.load)
                watch = periodic.repeat(
                    partial(asyncio.to_thread, keys.load), every_s=key_file.RELOAD_S, ended=self._dead.done
                )
                self._tasks.append(asyncio.create_task(watch))

    async def _start_engine(self, folder: Path, loading: asyncio.Task[download.LoadedFiles]) -> EngineFacts:
        """Start the child and wait until it is ready; a tokenizer that does not load ends the wait."""
        self._client = EngineClient(
            self._child.address,
            on_progress=self._on_progress,
            on_step=self._app_state.metrics.step,
            on_usage=self._app_state.metrics.tenants.used,
            on_failure=self._app_state.lifecycle.fail,
        )
        self._tasks.append(asyncio.create_task(self._client.run()))
        options = self._options.model_dump(mode="json", exclude=set(SECRET_OPTIONS))
        await self._child.start(str(folder), options)
        self._app_state.metrics.engine_pid = self._child.pid
        self._tasks.append(asyncio.create_task(self._watch_child(self._client)))
        if self._options.node_rank:
            watch = periodic.repeat(partial(self._watch_node, self._client), every_s=CHECK_S, ended=self._dead.done)
            self._tasks.append(asyncio.create_task(watch))
        ready = asyncio.create_task(self._client.wait_ready())
        try:
            await asyncio.wait({ready, loading}, return_when=asyncio.FIRST_EXCEPTION)
            if loading.done():
                await loading
            facts = await ready
        finally:
            ready.cancel()
        if facts.device.lower().startswith("cpu"):  # on a card a thread waits for it by spinning
            self._app_state.watchdog.is_busy = lambda: self._child.is_busy
        peer_keys = PeerKeySender(self._app_state.continuation_keys, self._client)
        watches = (
            periodic.repeat(peer_keys.send, every_s=PEER_KEYS_S, ended=self._dead.done),
            periodic.repeat(partial(self._watch_engine, self._client), every_s=LOOK_S, ended=self._dead.done),
            periodic.repeat(partial(self._check_outputs, self._client, facts), every_s=CHECK_S, ended=self._dead.done),
        )
        self._tasks += [asyncio.create_task(watch) for watch in watches]
        return facts

    def _on_progress(self, progress: Progress) -> None:
        *shown, computes, missing_nodes = msgspec.structs.astuple(progress)
        self._app_state.lifecycle.advance(*shown, computes=computes, missing_nodes=missing_nodes)
        self._console.show(*shown)

    async def _watch_child(self, client: EngineClient) -> None:
        """When the engine ends, every request that waits for it fails. Its own last message is better than ours."""
        how = await self._child.wait()
        self._app_state.lifecycle.fail()
        await asyncio.sleep(LAST_WORDS_S)
        self._give_up(client, how)

    def _give_up(self, client: EngineClient, why: str) -> None:
        """End every stream and then the process; the first reason counts."""
        client.fail(why)
        if not self._dead.done():
            self._dead.set_result(client.failure or why)

    async def _check_outputs(self, client: EngineClient, facts: EngineFacts) -> None:
        """While outputs are invalid in a row, have one computed: the requests may be at fault, or it may pass."""
        served = self._app_state.served_model
        if served is not None and client.invalid_in_a_row >= MOST_INVALID:
            prompt = served.profile.tokenizer.encode("Hello", special=True, limit=facts.max_cached_tokens)
            await output_check.check(client, facts, prompt)

    async def _watch_engine(self, client: EngineClient) -> None:
        """Look whether the engine keeps its time; end one that does not, since it would hold its streams for ever."""
        watchdog = self._app_state.watchdog
        watchdog.look(time.monotonic(), client.last_message_at, client.expected_s)
        self._dead_for_s = self._dead_for_s + LOOK_S if watchdog.dead else 0.0
        if self._dead_for_s > CONTINUED_S:
            words = f"{names.WATCHDOG}{watchdog.words}"
            xid = self._child.xid_since(client.last_message_at - BEFORE_A_STALL_S)
            self._give_up(client, words if xid is None else device_faults.with_xid(words, xid))
            self._child.kill()

    async def _watch_node(self, client: EngineClient) -> None:
        """Look whether the engine of a node runs: it has no steps by which a watchdog could find that it does not."""
        self._dead_for_s = self._dead_for_s + CHECK_S if self._child.is_stopped else 0.0
        if self._dead_for_s > STOPPED_S:
            self._give_up(client, f"the engine process was stopped for {STOPPED_S:g} s")
            self._child.kill()

    async def _engine_died(self) -> int:
        """Open requests have their error events by now; give them the time to be written."""
        code = self._console.failed(self._dead.result())
        await self._settle(FLUSH_S)
        return code

    async def _drain(self) -> int:
        """Refuse new requests, finish those that run, within the limit.

        A replica of a service accepts requests a little longer: gateways and Services learn late that it ends.
        """
        app_state, limit_s = self._app_state, self._options.drain_timeout
        app_state.lifecycle.leave(stragglers=bool(self._options.pod_revision and limit_s))
        self._console.leaving(app_state.num_active, limit_s)
        assert self._client is not None
        self._client.drain()
        self._client.hand_back()
        await self._first(asyncio.create_task(self._finish(limit_s)), self._signals.stop, self._dead)
        if self._dead.done():
            return await self._engine_died()
        if app_state.num_active:
            self._client.interrupt("the server is shutting down")
            await self._settle(0.0 if self._signals.stop.is_set() else FLUSH_S)
        return 1 if self._signals.stop.is_set() else 0

    async def _finish(self, limit_s: float) -> None:
        """Wait for those that may still come, then until no request is being served."""
        straggling_s = min(limit_s, self._app_state.lifecycle.straggling_s())
        await asyncio.sleep(straggling_s)
        if straggling_s and self._client is not None:
            self._client.hand_back()
        await self._settle(max(0.0, limit_s - straggling_s))

    async def _settle(self, timeout_s: float) -> None:
        """Wait until no request is being served."""
        try:
            await asyncio.wait_for(self._app_state.idle.wait(), timeout_s)
        except TimeoutError:
            pass

    async def _first(
        self, work: asyncio.Task[None], event: asyncio.Event, dead: asyncio.Future[str] | None = None
    ) -> bool:
        """Whether work ended before the event and the engine did; if not it is cancelled. Raises what it raises."""
        waiting = asyncio.create_task(event.wait())
        others: set[asyncio.Future[Any]] = {waiting} if dead is None else {waiting, dead}
        await asyncio.wait({work, *others}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if work.done():
            await work
            return True
        work.cancel()
        await asyncio.wait({work})
        return False

    async def _end_engine(self) -> None:
        if self._client is not None:
            self._client.shutdown()
        await self._child.stop(at_once=self._signals.stop.is_set())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _reason(message: str, *, refused: bool) -> str:
    """Why a start failed, in the word that the operator has for it; empty for what another start may cure."""
    if message.startswith(names.DEVICE_FAULT):
        return "DeviceFailed"
    known = next((reason for prefix, reason in names.REFUSALS.items() if message.startswith(prefix)), "")
    return known or ("ModelLoadFailed" if refused else "")


def _fingerprint(name: str, ready: EngineFacts) -> str:
    """Changes with whatever may change what a seed gives."""
    text = f"{__version__} {name} {ready.device} {ready.kernels} {ready.dtype} {ready.quantization}"
    return f"kvasir-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
