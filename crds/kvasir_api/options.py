"""Runtime options, declared once: `spec.runtime`, pod arguments, `kvasir serve --help` and the docs table derive from here.

An option is a pydantic field with a description, a default, bounds and a unit. `RuntimeOptions` are a user's to set in
an InferenceService; `ServeOptions` adds what only the process needs. Nothing here starts, reads or prints anything.
"""

from typing import Annotated, Literal, Self

from annotated_types import Ge, Le
from pydantic import ConfigDict, model_validator

from kvasir_api import eplb, hf_config, kv_transfer, multi_node, tenants
from kvasir_api.answer_formats import ReasoningParser, ToolCallParser
from kvasir_api.option_fields import OptionsBase, option
from kvasir_api.speculation import OPTION, RULE

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDtype = Literal["auto", "int8", "int4", "fp8"]
Device = Literal["auto", "cpu", "cuda"]
Quantization = Literal["auto", "none", "fp8", "int8", "int4"]
Reduction = Literal["FewerSequences", "Int8KvCache", "Int8Weights", "Int4Weights"]
"""What the operator may reduce of these options, where a spec lists it."""
ModelImpl = Literal["auto", "kvasir", "transformers"]
BlockSize = Literal[8, 16, 32, 64, 128]
Pooling = Literal["auto", "last", "cls", "mean"]
Normalize = Literal["auto", "always", "never"]
Scoring = Literal["auto", "similarity", "yes-no"]


class RuntimeOptions(OptionsBase):
    """How the engine runs the model. A change makes a new revision."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.?maxBatchTokens.orValue(0) == 0 || self.maxBatchTokens >= self.?blockSize.orValue(16)",
                    "message": "runtime.maxBatchTokens must be 0 or at least runtime.blockSize",
                    "fieldPath": ".maxBatchTokens",
                },
                RULE,
                *multi_node.RULES,
            ]
        }
    )

    dtype: Dtype = option(
        "auto",
        "Type of weights and activations; auto follows the checkpoint and what the device computes well: on CUDA bfloat16 for float32.",
    )
    quantization: Quantization = option(
        "auto",
        "Bits of the weights in memory; auto keeps what the checkpoint has in 8 or 4 bits, fp8, int8 and int4 quantize while loading (ISQ), also what has other bits; fp8 is made for cards.",
    )
    max_model_len: int = option(
        0, "Longest prompt plus answer; 0 takes it from the model's config.", unit="tokens", ge=0, le=16_777_216
    )
    kv_cache_dtype: KvCacheDtype = option(
        "auto",
        "Type of cached keys and values: auto is that of the activations, int8 takes half of 16 bits, int4 a quarter, coarser (no latent attention), fp8 (e4m3; CUDA of capability 8.9 and later) half, coarser.",
    )
    kv_cache_tokens: int = option(
        0,
        "Size of the KV cache; 0 takes what the share of memory leaves after the weights; on a CPU without a container's limit a quarter of the free memory, at most 8 GiB.",
        unit="tokens",
        ge=0,
        le=1_000_000_000,
    )
    kv_host_bytes: int = kv_transfer.KV_HOST_BYTES
    weights_host_bytes: int = option(
        0,
        "Memory of the host for weights that do not fit on the device: as many whole layers as it holds are copied there in every step. CUDA only; pinned. 0 keeps none.",
        unit="bytes",
        ge=0,
        le=1_099_511_627_776,
    )
    tensor_parallel_size: int = multi_node.TENSOR_PARALLEL_SIZE
    pipeline_parallel_size: int = multi_node.PIPELINE_PARALLEL_SIZE
    data_parallel_size: int = multi_node.DATA_PARALLEL_SIZE
    enable_expert_parallel: bool = multi_node.ENABLE_EXPERT_PARALLEL
    nnodes: int = multi_node.NNODES
    memory_percent: int = option(
        90,
        "Share of the device's memory (on a CPU the container's limit) that weights, activations and KV cache may take.",
        unit="percent",
        flag="memory-fraction",
        ge=1,
        le=99,
    )
    block_size: BlockSize = option(
        16, "Tokens in one block of the KV cache, the unit of sharing and eviction.", unit="tokens"
    )
    prefix_cache: bool = option(
        True, "Keep the KV cache of finished prompts and reuse it for requests with the same prefix."
    )
    prefix_warmup_seconds: int = option(
        10,
        "A new replica computes what its peers are asked most for at most so long before it is ready; 0 never.",
        unit="seconds",
        ge=0,
        le=600,
    )
    shared_prefix_cache: bool = option(
        False,
        "Let all tenants (API keys, or names in the tenant header) share the prefix cache. Then the count of cached tokens and the time to a first token can reveal what others have sent.",
    )
    tenant_weights: str = option(
        "",
        "Shares of tenants that wait, as name=weight with commas; others weigh 1. A tenant's name is the file of its key in the Secret, or file/hash where that holds several, with the first 8 digits of the key's SHA-256; the weight of a file holds for its keys that have none.",
        metavar="NAME=WEIGHT,...",
        pattern=tenants.WEIGHTS_PATTERN,
        max_length=4096,
    )
    cuda_graphs: bool = option(
        True,
        "Record decode steps as CUDA graphs, each of which is launched in one call.",
    )
    batch_invariant: bool = option(
        False,
        "Compute a token with the same bits whatever else its step computes. In float32 a CPU does so anyway; in bfloat16 this leaves AMX aside, so that prompts take longer. Rejected on CUDA, and with layers with a state or latent attention.",
    )
    speculation: str = OPTION
    suffix_decoding_max_cached_requests: int = option(
        0,
        "Recent answers of each tenant that speculation suffix and auto draft from too; never another tenant's. 0 keeps none.",
        unit="requests",
        ge=0,
        le=100_000,
    )
    max_batch_tokens: int = option(
        0,
        "Tokens computed in one step over all requests; 0 takes 8192 on CUDA and 512 on a CPU, and fewer while answers wait, so that a step takes about 0.05 seconds on CUDA and 0.1 on a CPU.",
        unit="tokens",
        ge=0,
        le=1_048_576,
    )
    max_sequences: int = option(
        256, "Requests that run at the same time; the others wait.", unit="requests", ge=1, le=4096
    )
    max_waiting: int = option(
        1024,
        "Requests that may wait for a place; further ones get 429 with Retry-After.",
        unit="requests",
        ge=1,
        le=100_000,
    )
    max_waiting_seconds: int = option(
        30,
        "Predicted time to the first token up to which a request may wait; further ones get 429 with Retry-After. It counts once predictions are calibrated. 0 sets no bound.",
        unit="seconds",
        ge=0,
        le=3600,
    )
    max_waiting_tokens: int = option(
        8_388_608,
        "Uncached prompt tokens of waiting requests up to which another one may wait; further ones get 429 with Retry-After. Where it is full, a few of the tenant that has most of it, by weight, give way to one of another. 0 sets no bound.",
        unit="tokens",
        ge=0,
        le=1_000_000_000,
    )
    ttft_milliseconds: int = option(
        0,
        "Objective for the first token of requests that bring none in the header x-slo-ttft-ms: one that cannot be met gets 429 with Retry-After at once. 0 sets none.",
        unit="milliseconds",
        ge=0,
        le=600_000,
    )
    tool_call_parser: ToolCallParser = option(
        "auto",
        "Format in which the model writes calls of functions; auto detects it from the chat template, none gives them as text.",
    )
    reasoning_parser: ReasoningParser = option(
        "auto",
        "Tags with which the model marks its thoughts; auto detects them from the chat template, none leaves them in the text.",
    )
    generation_config: Literal["auto", "none"] = option(
        "auto",
        "Defaults for temperature and the like where a request says nothing: auto takes those of the checkpoint's "
        "generation_config.json, none those of the API.",
    )
    hf_overrides: str = option(
        "",
        'Fields that replace those of the checkpoint\'s config.json, as a JSON object, for example {"rope_scaling": '
        '{"rope_type": "linear", "factor": 4.0}} for a longer context.',
        metavar="JSON",
        max_length=65_536,
    )
    pooling: Pooling = option(
        "auto",
        "Hidden states that embeddings are made of: of the last or (in an encoder) the first token, or the mean; auto reads "
        "modules.json, else takes the last token, of an encoder the mean. Any other says that the model is for embeddings.",
    )
    normalize: Normalize = option(
        "auto", "Scale embeddings to length 1; auto reads the checkpoint's modules.json, and scales without one."
    )
    matryoshka: bool = option(
        False, "Let requests shorten embeddings with `dimensions`, even if the checkpoint's config does not allow it."
    )
    scoring: Scoring = option(
        "auto",
        "How /score and /rerank judge: yes-no asks a model trained for it (Qwen3-Reranker), and similarity compares "
        "embeddings; auto takes the classification head or what the checkpoint says.",
    )

    @property
    def memory_fraction(self) -> float:
        """memory_percent as 0..1."""
        return self.memory_percent / 100

    @property
    def ranks(self) -> int:
        """Processes that compute the model together."""
        return self.sharing_ranks * self.data_parallel_size

    @property
    def sharing_ranks(self) -> int:
        """Ranks that have a part each of the same KV cache."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def local_ranks(self) -> int:
        """Ranks on each node."""
        return self.ranks // self.nnodes

    @model_validator(mode="after")
    def _texts_can_be_parsed(self) -> Self:
        hf_config.parsed_overrides(self.hf_overrides)
        tenants.weights(self.tenant_weights)
        return self

    @model_validator(mode="after")
    def _batch_holds_a_block(self) -> Self:
        if 0 < self.max_batch_tokens < self.block_size:
            raise ValueError(f"maxBatchTokens {self.max_batch_tokens} is less than blockSize {self.block_size}")
        return self

    @model_validator(mode="after")
    def _nodes_divide_the_ranks(self) -> Self:
        sizes = self.tensor_parallel_size, self.pipeline_parallel_size, self.nnodes
        multi_node.check(*sizes)
        multi_node.check_data(self.data_parallel_size, *sizes, self.speculation)
        return self

    @model_validator(mode="after")
    def _host_tier_is_possible(self) -> Self:
        if self.kv_host_bytes and not self.prefix_cache:
            raise ValueError("kvHostBytes needs prefixCache: blocks on the host are found by their prefix")
        if self.kv_host_bytes and self.ranks > 1:
            raise ValueError("kvHostBytes needs one rank: copies are not made of several ranks' blocks yet")
        return self


Port = Annotated[int, Ge(0), Le(65535)]


class ServeOptions(RuntimeOptions):
    """What `kvasir serve` takes besides: addresses, names, access, logs. The operator sets these for a pod."""

    model: str = option(
        ...,
        "Directory of a Hugging Face checkpoint (safetensors), a .gguf file, a hub name, or a uri that begins with hf://, s3://, gs://, oci:// or https://.",
    )
    revision: str = option(
        "",
        "Branch, tag or commit of a MODEL on the hub; default: its main branch.",
        metavar="REVISION",
        max_length=255,
    )
    model_impl: ModelImpl = option(
        "auto",
        "What computes the layers: kvasir for the architectures that it has, transformers for others, slowly, where the extra transformers is installed; auto takes kvasir where it has the architecture.",
    )
    enable_eplb: bool = eplb.ENABLE_EPLB
    eplb_config: str = eplb.EPLB_CONFIG
    node_rank: int = multi_node.NODE_RANK
    master_addr: str = multi_node.MASTER_ADDR
    master_port: int = multi_node.MASTER_PORT
    node_key_file: str = multi_node.NODE_KEY_FILE
    node_group: str = multi_node.NODE_GROUP
    chat_template: str = option(
        "",
        "Chat template in place of the checkpoint's: a file, the template itself, or the name of one of several that the "
        "checkpoint has.",
        metavar="FILE|TEMPLATE|NAME",
    )
    served_model_name: tuple[str, ...] = option(
        (), "Name that clients use for the model; may be repeated. Default: the last part of MODEL.", metavar="NAME"
    )
    host: str = option("127.0.0.1", "Address to listen on; :: is every address, of IPv4 too.", metavar="ADDRESS")
    port: Port = option(8000, "Port for clients (/v1, /health, /metrics); 0 takes a free one.", metavar="PORT")
    ops_port: Port = option(
        8001,
        "Port for the control plane (probes, /state, drain); keep clients away from it. 0 takes a free one.",
        metavar="PORT",
    )
    device: Device = option("auto", "Where to compute; auto takes CUDA when there is a device.")
    api_key: tuple[str, ...] = option(
        (),
        "Key that clients must send as a bearer token; may be repeated. Prefer the variable KVASIR_API_KEY.",
        metavar="KEY",
    )
    api_key_file: str = option(
        "",
        "File with keys that clients must send as a bearer token, one per line, or a directory of such files, as a mounted Secret is. It is read again when it changes; without any key in it every request is rejected.",
        metavar="PATH",
    )
    tenant_header: str = option(
        "",
        "Header in which a trusted proxy names the tenant of a request; without it, and in requests that lack it, each key is a tenant. Clients must not be able to set it.",
        metavar="NAME",
        pattern=r"^[A-Za-z0-9-]*$",
        max_length=64,
    )
    most_urgent_priority: int = option(
        0,
        "Lowest priority that a request may have where there are several tenants: several keys, or a tenant header. The shares of tenants hold within one priority only, so a lower number lets each of them pass the others.",
        metavar="N",
        ge=-100,
        le=0,
    )
    cors_origin: tuple[str, ...] = option(
        (), "Origin that browsers may call from; may be repeated, * allows all.", metavar="ORIGIN"
    )
    root_path: str = option(
        "", "Prefix that a proxy leaves before our paths; they are found with it and without it.", metavar="PATH"
    )
    max_body_bytes: int = option(
        16_777_216, "Largest request body; longer ones get 413.", unit="bytes", ge=1024, le=1_073_741_824
    )
    strict_fields: bool = option(
        False, "Refuse request fields that have no effect, instead of naming them in x-kvasir-ignored-fields."
    )
    stored_response_bytes: int = option(
        67_108_864,
        "Memory for the responses of /v1/responses that clients may fetch or go on from by id; 0 keeps none.",
        unit="bytes",
        ge=0,
        le=1_099_511_627_776,
    )
    drain_timeout: int = option(
        600, "After SIGTERM, how long running requests may take to finish.", unit="seconds", ge=0, le=86_400
    )
    watchdog_timeout: int = option(
        30, "Least silence of an engine that ends the process; 0 never ends it.", unit="seconds", ge=0, le=86_400
    )
    ops_key_file: str = option(
        "",
        "File, or a directory of files, with what may change something by the ops port (drain, forget), one per line: public keys (ed25519:…) of an operator that signs its calls, and tokens for `Authorization: Bearer`. Without it such calls are accepted over loopback only. Read again when it changes.",
        metavar="PATH",
    )
    tls_dir: str = option("", "Directory with tls.crt and tls.key, with which both ports speak TLS.", metavar="DIR")
    continuation_key_file: str = option(
        "",
        "File with keys, one per line, or a directory of such files, that sign continuation tokens: streams that end in a drain go on at another server with the same keys. The first signs, the others are accepted too. Read again when it changes.",
        metavar="PATH",
    )
    log_format: Literal["text", "json"] = option("text", "Form of log lines.")
    trace: str = option(
        "",
        "File to record every step's plan into, for replay; it holds the tokens of prompts and answers in clear.",
        metavar="FILE",
    )
    otlp_traces_endpoint: str = option(
        "",
        "Address of an OTLP collector (HTTP) that gets a span for each request, for example http://127.0.0.1:4318; needs the extra otel.",
        metavar="URL",
    )
    otlp_sample_percent: int = option(
        100,
        "Share of requests of which spans are sent; a request whose client traces it follows the client.",
        unit="percent",
        ge=0,
        le=100,
    )
    profile: str = option(
        "",
        "File to write a trace of where the time of each step goes into, for Perfetto or chrome://tracing; a table of it is logged every 10 seconds.",
        metavar="FILE",
    )
    startup_cache: str = option(
        "",
        "Directory that keeps what a start measured (memory of a step), so that the next one with the same model, options and machine need not; off keeps nothing. Default: the variable KVASIR_STARTUP_CACHE, else kvasir/start in the user's cache.",
        metavar="DIR|off",
    )
    kv_host_dir: str = kv_transfer.KV_HOST_DIR
    kv_transfer_port: int = kv_transfer.KV_TRANSFER_PORT
    pod_revision: str = option(
        "", "Name of the revision of the service that this pod belongs to; reported in /state.", metavar="NAME"
    )

    @model_validator(mode="after")
    def _experts_can_be_copied(self) -> Self:
        whole, stages = self.enable_expert_parallel, self.pipeline_parallel_size
        eplb.check(self.enable_eplb, self.eplb_config, whole, self.ranks, stages, self.batch_invariant)
        return self
