"""Which kind a request is, how long it may become, and why it can never run. A new kind adds its line here."""

from kvasir_api.hashes import block_root, split_block_hashes
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds import beam_group, generation, pooling
from kvasir_runtime.core.kinds.beam_group import BeamGroup
from kvasir_runtime.core.kinds.beam_search import BeamSearch
from kvasir_runtime.core.kinds.generation import Generation
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.kinds.pooling import PromptPooling
from kvasir_runtime.core.kinds.prompt_scoring import PromptScoring
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.wire import EngineRequest


def longest(request: EngineRequest, limits: Limits) -> int:
    """Longest prompt and answer of a request."""
    if request.pooling is not None:
        return limits.max_pooled_tokens
    if request.beam is not None:
        return beam_group.longest(request, request.beam, limits)
    return limits.max_sequence_tokens


def refusal(request: EngineRequest, limits: Limits, num_rows: int) -> str:
    """Why a request can never run, as a sentence; empty when it can. num_rows: sequences that can run at a time."""
    if request.beam is not None and (why := beam_group.refusal(request.beam, num_rows)):
        return why
    if request.generated and (request.beam or request.pooling or request.sampling.prompt_logprobs >= 0):
        return "only a sampled answer without prompt_logprobs can go on behind tokens that were generated elsewhere"
    if not request.prompt_tokens:
        return "the prompt is empty"
    if request.pooling is not None:
        return pooling.refusal(request, longest(request, limits))
    return generation.refusal(request, longest(request, limits))


def new_kind(request: EngineRequest, *, limits: Limits, pool: BlockPool, now: float) -> RequestKind:
    """A request that just arrived, and that is not refused."""
    state = RequestState(request, billed_since=now)
    sequence = SequenceState(state, block_root(salt=request.salt, secret=limits.hash_salt), request.prompt_ids())
    sequence.tokens.extend(request.generated)
    hashes = split_block_hashes(request.block_hashes) if limits.prefix_cache else []
    if len(hashes) == request.prompt_tokens // limits.block_size:
        sequence.hashes = hashes
    if request.pooling is not None:
        return PromptPooling(state, sequence, limits)
    sampling = request.sampling
    stops = frozenset(sampling.stop_token_ids) | frozenset(() if sampling.ignore_eos else limits.eos_token_ids)
    limit = min(longest(request, limits), request.prompt_tokens + sampling.max_tokens)
    answer: RequestKind
    if request.beam is not None:
        is_guided = sampling.grammar is not None
        search = BeamSearch(
            beam=request.beam,
            # A grammar allows EOS, also where it shall be ignored, once nothing else can follow.
            stops=stops.union(limits.eos_token_ids) if is_guided else stops,
            ends_once=is_guided,
            min_tokens=sampling.min_tokens,
            max_tokens=limit - request.prompt_tokens,
            num_logprobs=sampling.logprobs,
        )
        answer = BeamGroup(state, sequence, search, limits, limit, pool)
    else:
        answer = Generation(state, sequence, limits, limit, stops)
    return answer if sampling.prompt_logprobs < 0 else PromptScoring(answer)
