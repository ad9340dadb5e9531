"""`kvasir plan`: the verdict in numbers a person and a program can read, and one line for what cannot be judged."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes import checkpoints, ggufs, hub
from kvasir_api import forecast, inspection, names
from kvasir_api.options import RuntimeOptions
from kvasir_runtime.commands import host_resources
from kvasir_runtime.commands.fit_report import fit_report
from kvasir_runtime.commands.plan import plan
from kvasir_runtime.commands.sizes import num_bytes
from kvasir_runtime.errors import ModelError
from kvasir_runtime.models import registry

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def run(*args):
    return CliRunner().invoke(plan, [str(arg) for arg in args])


def test_a_model_that_fits(model):
    result = run(model, "--memory", "80GiB", "--device", "cuda", "--max-model-len", "8192")
    assert result.exit_code == 0
    for words in (
        "LlamaForCausalLM, 8.03 billion parameters",
        "80.00 GiB on cuda, 90% of it",
        "14.96 GiB in bfloat16",
        "tokens of 128.0 KiB",
        "requests of 8,192 tokens",
        "it fits",
    ):
        assert words in result.output


QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(("memory", "exit_code", "words"), [("141GB", 0, "it fits"), ("48GB", 1, "too small")])
def test_all_experts_have_to_fit(tmp_path, memory, exit_code, words):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B))
    result = run(tmp_path, "--memory", memory, "--device", "cuda")
    assert result.exit_code == exit_code
    assert "(Qwen3MoeForCausalLM, 30.5 billion parameters, 3.35 billion active)" in result.output
    assert "56.87 GiB in bfloat16" in result.output
    assert words in result.output


def test_a_model_that_does_not_fit_says_what_would(model):
    result = run(model, "--memory", "24Gi", "--device", "cuda")
    assert result.exit_code == 1
    assert "too small for 131,072 tokens; it fits with --max-model-len 27791 " in result.output
    result = run(model, "--memory", "8Gi", "--device", "cuda")
    assert result.exit_code == 1
    assert "too small: the process (0.62 GiB), the weights (14.96 GiB)" in result.output


def test_the_same_as_json(model):
    result = run(model / "config.json", "--memory", "24Gi", "--device", "cuda", "--memory-fraction", "0.8", "--json")
    document = json.loads(result.stdout)
    assert document["memory_fraction"] == 0.8
    assert document["memory_bytes"] == 24 * 2**30
    assert document["parameters"] == 8_030_261_248
    assert document["fit"]["verdict"] == "TooSmall"
    assert 0 < document["fitting_context"] == document["fit"]["kv_tokens"] < 131_072


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["./nowhere"], "model directory ./nowhere does not exist"),
        (["{broken}"], "hidden_size is missing"),
        (
            ["{foreign}"],
            "architecture XForConditionalGeneration is not supported, and config.json: hidden_size is miss",
        ),
        (["{notjson}"], "config.json: Expecting value"),
        (["{model}", "--memory", "lots"], "'lots' is not a size such as 24Gi or 80GB"),
        (["{model}", "--device", "cuda"], "set --memory to the memory of the device"),
        (["{model}", "--memory", "0"], "'0' is not a size"),
        (["{model}", "--revision", "v1"], "--revision v1 is for models on the hub"),
        (["{model}", "--memory", "1Gi", "--max-batch-tokens", "8"], "maxBatchTokens 8 is less than blockSize 16"),
    ],
)
def test_what_cannot_be_judged_is_one_line(model, tmp_path, arguments, words):
    foreign = '{"architectures": ["XForConditionalGeneration"], "vision_config": {}, "llm_config": {}}'
    for name, text in (("broken", "{}"), ("notjson", "x"), ("foreign", foreign)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    places = {"model": str(model)} | {name: str(tmp_path / name) for name in ("broken", "notjson", "foreign")}
    result = run(*(argument.format(**places) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_pod_of_the_operator_names_the_model_as_the_service_does(tmp_path, monkeypatch):
    monkeypatch.setenv(names.ENV_MODEL_URI, "pvc://models/absent")
    result = run(tmp_path / "absent", "--facts", "-")
    assert "model directory pvc://models/absent does not exist" in result.output


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "quantized with awq to 3 bits"),
        ({"quantization_config": {"quant_method": "torchao"}}, "quantized with torchao"),
        ({"quantization_config": []}, "Expected `object | null`, got `array`"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; expected silu; --model-impl transformers may"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "spiral"),
        ({"num_key_value_heads": 7}, "num_key_value_heads 7 does not divide num_attention_heads 32"),
    ],
)
def test_what_a_start_refuses_is_refused_in_its_words(model, changed, words):
    (model / "config.json").write_text(json.dumps(LLAMA_8B | changed))
    with pytest.raises(ModelError) as refused:
        registry.read(model)
    said = str(refused.value).replace(f"{model}/", "")
    assert words in said
    for arguments in (["--memory", "80Gi", "--device", "cuda"], ["--facts", "-"]):
        result = run(model, *arguments)
        assert result.exit_code == 2
        assert result.output == f"Error: {said}\n"


def test_overrides_mend_what_a_start_refuses(model):
    (model / "config.json").write_text(json.dumps(LLAMA_8B | {"hidden_act": "gelu"}))
    result = run(model, "--memory", "80Gi", "--device", "cuda", "--hf-overrides", '{"hidden_act": "silu"}')
    assert result.exit_code == 0


def test_an_unknown_architecture_is_told_apart_from_one_that_does_not_fit():
    config = {**LLAMA_8B, "architectures": ["NoSuchModel"]}
    judged = fit_report("m", config, memory_bytes=2**37, device="cuda", options=RuntimeOptions())
    assert not judged.supported
    assert judged.fit.verdict == "Fits"


@pytest.mark.parametrize(
    ("text", "want"),
    [("24Gi", 24 * 2**30), ("24GiB", 24 * 2**30), ("80GB", 80 * 10**9), ("1.5G", 1_500_000_000), ("4096", 4096)],
)
def test_sizes_are_read_as_people_write_them(text, want):
    assert num_bytes(text) == want


def test_what_is_planned_is_what_the_engine_says_of_itself():
    model = Path(__file__).parents[3] / "operator/kvasir_local/demo/model"
    config = json.loads((model / "config.json").read_text())
    judged = fit_report("demo", config, memory_bytes=2**32, device="cpu", options=RuntimeOptions(dtype="bfloat16"))
    weights = (model / "model.safetensors").stat().st_size
    assert 0 <= weights - judged.fit.weights_bytes < 8192, "the file has a header"
    left = int(2**32 * 0.9) - judged.fit.weights_bytes - judged.fit.activation_bytes - forecast.PROCESS_BYTES["cpu"]
    assert judged.fit.kv_tokens == left // 1024


@pytest.mark.parametrize(("device", "sizes"), [("cpu", ("4Gi", "4Gi")), ("cuda", ("4Gi", "8Gi"))])
def test_each_rank_is_a_process_and_on_cuda_a_device_of_as_much_memory(tmp_path, device, sizes):
    model, ranked = checkpoints.write(tmp_path / "m"), ("--device", device, "--tensor-parallel-size")
    asked = [(model, "--memory", size, *ranked, ranks) for size, ranks in zip(sizes, "21", strict=True)]
    two, one = (json.loads(run(*given, "--json").output)["fit"] for given in asked)
    beside = forecast.PROCESS_BYTES[device] + one["activation_bytes"]
    left = [each["kv_tokens"] * each["kv_bytes_per_token"] for each in (one, two)]
    assert left[0] - left[1] == pytest.approx(beside, abs=4 * one["kv_bytes_per_token"])
    assert "2 times " in run(*asked[0]).output


def test_ranks_of_nodes_have_the_memory_of_all_and_cards_have_no_stages(tmp_path):
    model, ranked = checkpoints.write(tmp_path / "m"), ("--device", "cpu", "--tensor-parallel-size", "4")
    on_two = run(model, "--memory", "4Gi", *ranked, "--nnodes", "2").output
    assert on_two == run(model, "--memory", "8Gi", *ranked).output
    refused = run(model, "--memory", "4Gi", "--device", "cuda", "--pipeline-parallel-size", "2").output
    assert "2 ranks are not possible on CUDA: devices divide layers, by --tensor-parallel-size alone" in refused
    refused = run(model, "--memory", "4Gi", *ranked[:-1], "3").output
    assert "--tensor-parallel-size 3 is not possible: 2 key heads can neither be divided among 3 ranks" in refused


def test_a_gguf_file_is_judged_by_what_it_says_of_itself(tmp_path):
    source = checkpoints.write(tmp_path / "source", checkpoints.Shape(family="qwen2"))
    path = ggufs.write(source, tmp_path / "files" / "m.gguf", kind="F16")
    wanted = run(source, "--memory", "4Gi", "--device", "cpu", "--json")
    for model in (path, path.parent):
        given = run(model, "--memory", "4Gi", "--device", "cpu", "--dtype", "float32", "--json")
        assert json.loads(given.output)["fit"] == json.loads(wanted.output)["fit"]
    path.write_bytes(b"GGUF")
    assert "truncated" in run(path, "--memory", "4Gi").output


@pytest.mark.parametrize(
    ("quantization", "shown"),
    [
        ("fp8", "8.00 GiB in bfloat16 and fp8"),
        ("int8", "8.41 GiB in bfloat16 and int8"),
        ("int4", "5.56 GiB in bfloat16 and int4"),
    ],
)
def test_quantized_weights_are_smaller(model, quantization, shown):
    # 6,979,321,856 parameters in layers' matrices, 525,336,576 each in head and table, 266,240 in norms.
    result = run(model, "--memory", "80Gi", "--device", "cuda", "--quantization", quantization)
    assert shown in result.output


def test_a_checkpoint_in_fewer_bits_is_counted_so(tmp_path):
    quantized = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | quantized))
    result = run(tmp_path, "--memory", "24GiB", "--device", "cuda", "--max-model-len", "8192")
    assert "6.02 GiB in bfloat16, matrices in 5 bits as the checkpoint has them" in result.output
    assert "14.96 GiB in bfloat16\n" in run(tmp_path, "--memory", "24GiB", "--quantization", "none").output


def test_forecast_counts_what_the_engine_holds(tmp_path):
    shape = checkpoints.Shape(hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, intermediate_size=512)
    config = forecast.shape(checkpoints.config_json(shape))
    assert config.weights_bytes("bfloat16", "int8") == 1_506_816  # as tests/kvasir_runtime/kernels/test_quantize.py has
    assert config.weights_bytes("bfloat16", "int4") == 990_720
    assert config.weights_bytes("bfloat16", "fp8") == 1_449_472 - 4 * 4096
    tied = forecast.shape(checkpoints.config_json(shape) | {"tie_word_embeddings": True})
    assert tied.weights_bytes("bfloat16", "int8") == 1_506_816
    assert tied.weights_bytes("bfloat16", "none") == 2_689_536 - 2 * 320 * 256


@pytest.mark.parametrize(
    ("container", "shared"), [("max", True), ("", True), (str(2**34), False), (str(2**63 - 4096), True)]
)
def test_memory_without_a_containers_limit_is_shared(tmp_path, container, shared):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    if container:
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(container + "\n")
    assert host_resources.memory_is_shared(tmp_path) is shared


@pytest.mark.parametrize(("asked", "gib"), [(0, 6), (65_536, 8)])
def test_shared_memory_is_taken_in_part(asked, gib):
    judged = fit_report(
        "m",
        LLAMA_8B,
        memory_bytes=24 << 30,
        device="cpu",
        options=RuntimeOptions(dtype="bfloat16", quantization="int4", max_model_len=asked),
        shared=True,
    )
    assert judged.fit.kv_tokens == gib * 2**30 // (128 << 10)


def test_facts_are_written_for_somebody_else_to_judge(model, tmp_path):
    place = tmp_path / "words"
    result = run(model, "--facts", place)
    assert (result.exit_code, result.output) == (0, "")
    facts = inspection.decode(place.read_text())
    assert (facts.architecture, facts.supported) == ("LlamaForCausalLM", True)
    assert facts.cpu_dtype in ("bfloat16", "float32")
    assert facts.shape == forecast.shape(LLAMA_8B)
    assert run(model, "--facts", "-").output.strip() == place.read_text()


def test_the_draft_model_is_written_too(model, tmp_path):
    small = {**LLAMA_8B, "num_hidden_layers": 8}
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(small))
    facts = inspection.decode(run(model, "--facts", "-", "--speculation", tmp_path / "small").output)
    assert (facts.draft_model, facts.drafter) == (str(tmp_path / "small"), forecast.shape(small))
    assert facts.shape == forecast.shape(LLAMA_8B)
    plain = inspection.decode(run(model, "--facts", "-", "--speculation", "suffix").output)
    assert (plain.draft_model, plain.drafter) == ("", None)


def test_a_draft_model_that_cannot_be_read_holds_no_facts_up(model, tmp_path):
    (tmp_path / "odd.json").write_text(json.dumps({**LLAMA_8B, "architectures": 5}))
    for drafter in (tmp_path / "absent", tmp_path / "odd.json"):
        facts = inspection.decode(run(model, "--facts", "-", "--speculation", drafter).output)
        assert (facts.draft_model, facts.drafter) == (str(drafter), None)


def test_an_unknown_architecture_is_named_as_such(model):
    (model / "config.json").write_text(json.dumps({**LLAMA_8B, "architectures": ["Unheard"]}))
    facts = inspection.decode(run(model, "--facts", "-").output)
    assert (facts.architecture, facts.supported) == ("Unheard", False)


@pytest.mark.parametrize("place", ["/nowhere/words", "/"])
def test_facts_that_cannot_be_written_are_one_line(model, place):
    result = run(model, "--facts", place)
    assert result.exit_code == 2
    assert f"--facts {place}: cannot be written" in result.output


def test_a_memory_limit_that_no_control_group_enforces_counts(tmp_path, monkeypatch):
    monkeypatch.delenv(names.ENV_MEMORY_LIMIT, raising=False)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    assert (host_resources.memory_bytes(tmp_path), host_resources.memory_is_shared(tmp_path)) == (4 * 2**30, True)
    monkeypatch.setenv(names.ENV_MEMORY_LIMIT, str(2**30))
    assert (host_resources.memory_bytes(tmp_path), host_resources.memory_is_shared(tmp_path)) == (2**30, False)


def test_overrides_are_judged(model):
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 131072}}
    result = run(model, "--memory", "80GiB", "--device", "cuda", "--hf-overrides", json.dumps(yarn))
    assert "requests of 524,288 tokens" in result.output
    assert run(model, "--memory", "80GiB", "--device", "cuda", "--hf-overrides", "[").exit_code == 2
    facts = inspection.decode(run(model, "--facts", "-", "--hf-overrides", json.dumps(yarn)).output)
    assert facts.shape.max_positions == 524_288
    assert facts.overrides == inspection.overrides_digest(json.dumps(yarn)) != inspection.overrides_digest("")


def test_weights_on_the_host_are_counted_with_what_a_step_copies(model):
    args = ("--memory", "16GiB", "--device", "cuda", "--max-model-len", "8192")
    assert run(model, *args).exit_code == 1
    result = run(model, *args, "--weights-host-bytes", 6 * 2**30)
    assert result.exit_code == 0
    assert "10.08 GiB in bfloat16; 5.69 GiB on the host: a step takes at least 0.24 s at 25 GB/s" in result.output


def test_weights_are_on_the_host_of_a_cpu_anyway(model):
    result = run(model, "--memory", "80GiB", "--device", "cpu", "--weights-host-bytes", 6 * 2**30)
    assert result.exit_code == 2
    assert "on a CPU the weights are in the host's memory as they are" in result.output


def test_a_model_on_a_hub_is_judged_by_its_config_alone(tmp_path):
    files = {"config.json": json.dumps(LLAMA_8B).encode(), hub.WEIGHTS: b"weights"}
    with hub.serving(files=files) as found:
        done = hub.planned(found, tmp_path, "hf://org/name@v1", "--memory", "80GiB", "--device", "cuda")
        assert "14.96 GiB in bfloat16" in done.stdout
        done = hub.planned(found, tmp_path, "hf://org/name@v1", "--facts", "-")
        said = inspection.decode_remote(done.stdout)
        assert (said.commit, said.download_bytes) == (hub.COMMIT, sum(map(len, files.values())))
        assert said.facts.shape.parameters == 8_030_261_248
        assert not any(path.endswith(hub.WEIGHTS) for path in found.of("GET"))


def test_what_a_hub_has_is_told_though_it_cannot_be_judged(tmp_path):
    files = {"config.json": b'{"architectures": ["Unheard"]}', "a.gguf": b"GGUF"}
    with hub.serving(files=files) as found:
        said = inspection.decode_remote(hub.planned(found, tmp_path, "hf://org/name", "--facts", "-").stdout)
        assert (said.commit, said.facts) == (hub.COMMIT, None)
        assert said.message.startswith("architecture Unheard is not supported")
        said = inspection.decode_remote(hub.planned(found, tmp_path, "hf://org/name/a.gguf", "--facts", "-").stdout)
        assert (said.download_bytes, said.facts) == (4, None)
        found.fault = "gated"
        done = hub.planned(found, tmp_path, "hf://org/name", "--facts", "-")
        assert done.returncode == 2
        assert "model org/name is gated: accept its terms on the hub" in done.stderr


def test_a_gguf_file_on_a_hub_is_judged_by_its_header(tmp_path):
    source = checkpoints.write(tmp_path / "source", checkpoints.Shape(family="qwen2"))
    path = ggufs.write(source, tmp_path / "m.gguf", kind="Q8_0")
    asked = ("--memory", "4Gi", "--device", "cpu", "--json")
    with hub.serving(files={"m.gguf": path.read_bytes()}) as found:
        done = hub.planned(found, tmp_path, "hf://org/name/m.gguf", *asked)
        local = json.loads(run(path, *asked).output)
        assert json.loads(done.stdout) | {"model": ""} == local | {"model": ""}
        assert local["stored_sixteenths"]
        said = inspection.decode_remote(hub.planned(found, tmp_path, "hf://org/name/m.gguf", "--facts", "-").stdout)
        assert (said.commit, said.download_bytes) == (hub.COMMIT, path.stat().st_size)
        assert said.facts.architecture == "Qwen2ForCausalLM"


def test_an_encoder_has_a_step_and_no_cache(tmp_path):
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 384, "intermediate_size": 1536,
        "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run(tmp_path, "--memory", "2Gi", "--device", "cpu", "--max-batch-tokens", "2048")
    assert result.exit_code == 0
    for words in (
        "(BertModel, 33.2 million parameters)",
        "KV cache     none: an encoder computes each text in one step",
        "step         up to 2,048 tokens of 256 texts at most",
        "it fits",
    ):
        assert words in result.output
    result = run(tmp_path, "--memory", "300Mi", "--device", "cpu")
    assert result.exit_code == 1
    assert "too small: the process" in result.output
