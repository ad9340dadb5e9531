"""What people write into a spec stays words: arguments of a program, never a shell's, and never code of a model."""

import ast
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fakes.manifests import service
from fakes.random_specs import FIELDS, ODD, SPEC, changed, changes
from fakes.stages import pod_template, resolved
from kvasir_api.inspection import overrides_digest
from kvasir_api.options import ServeOptions
from kvasir_operator.desired.inspection import inspection_plan
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

ROOT = Path(__file__).parents[3]
SETTINGS = OperatorSettings(runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv",))
BASIC = {"model": {"uri": "pvc://models/a"}}
SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash"}


def seen(spec):
    return observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None)


@given(changes(most=5), st.sampled_from(['file:///srv/a;$(id) `b` "c" \'', "pvc://models/a.b_c-d"]))
def test_whatever_a_spec_says_stays_one_argument(fields, uri):
    found = seen(changed(BASIC, {**fields, "model.uri": uri}))
    if found.invalid:
        return  # the API server lets it in, but we do not
    pod = pod_template(found, "rev", SETTINGS)["spec"]
    (container,) = pod["containers"]
    assert "command" not in container, "the image's entry point is all that is ever started"
    arguments = container["args"]
    assert all(isinstance(argument, str) for argument in arguments)
    # Kubernetes expands $(NAME) in arguments; the only ones are ours.
    own = ["LISTEN_ADDRESS", *(["NODE_RANK", "MASTER_ADDRESS", "NODE_GROUP"] if found.spec.runtime.nnodes > 1 else [])]
    assert [argument for argument in arguments if "$(" in argument] == [f"$(KVASIR_{name})" for name in own]
    assert arguments[0].startswith("/models")
    options = [argument for argument in arguments if argument.startswith("--")]
    assert all(option.removeprefix("--").replace("-", "").isalnum() for option in options)
    names = {entry["name"] for entry in container["env"]}
    assert {name for name in names if not name.startswith("KVASIR_")} <= {"HOME", "OMP_NUM_THREADS"}


def test_a_draft_model_that_the_api_server_would_refuse_is_refused():
    for value in ("$(id)", "--host", "models/a b", "/model/$HOME"):
        assert "runtime.speculation must be off, auto" in seen({**BASIC, "runtime": {"speculation": value}}).invalid
    for value in ("off", "suffix", "/model/small", "hf://org/name@v1"):
        assert not seen({**BASIC, "runtime": {"speculation": value}}).invalid


def test_overrides_of_a_models_config_are_not_expanded():
    given = '{"a": "$(HOME) $$"}'
    runtime = {"hfOverrides": given}
    found = seen({**BASIC, "runtime": runtime, "model": {"uri": "pvc://models/a", "inspect": "Always"}})
    asked = inspection_plan(resolved(found, SETTINGS), SETTINGS, wanted=1, written=True, now=0.0).create
    assert asked is not None
    for pod in (pod_template(found, "rev", SETTINGS), asked):
        arguments = pod["spec"]["containers"][0]["args"]
        sent = arguments[arguments.index("--hf-overrides") + 1]
        assert "$" not in sent
        assert json.loads(sent) == json.loads(given)
        assert overrides_digest(sent) == overrides_digest(given)


def test_the_pod_that_looks_at_a_model_starts_no_shell_either():
    found = seen({"model": {"uri": "file:///srv/a;$(id)", "inspect": "Always"}})
    asked = inspection_plan(resolved(found, SETTINGS), SETTINGS, wanted=1, written=True, now=0.0).create
    assert asked is not None
    (container,) = asked["spec"]["containers"]
    assert not any("$(" in argument for argument in container["args"])
    assert not SHELLS & {*container.get("command", ()), *container["args"]}


def test_odd_words_are_drawn():
    """Or the first test would prove little."""
    assert {"$(id)", "`id`", "--host"} <= set(ODD)
    assert len(FIELDS) > 50
    assert SPEC["properties"]["model"]


def test_nothing_of_ours_starts_a_shell():
    """No os.system, no shell=True, no sh -c in what runs in a cluster, and none in its manifests."""
    breaches = []
    for package in ("operator/kvasir_operator", "operator/kvasir_gateway", "operator/kvasir_kube", "runtime", "crds"):
        for path in (ROOT / package).rglob("*.py"):
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            breaches += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in calls if _shell(node)]
    assert breaches == []
    texts = [path.read_text() for path in (ROOT / "manifests").rglob("*.yaml")]
    assert not any(word in text for text in texts for word in ("/bin/sh", "bash -c", "sh -c", "- sh\n"))


def _shell(node):
    name = ast.unparse(node.func)
    if name in ("os.system", "os.popen", "subprocess.getoutput", "asyncio.create_subprocess_shell", "eval", "exec"):
        return True
    return any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)


def test_no_option_runs_a_models_code():
    names = {*ServeOptions.model_fields, *FIELDS}
    assert not [name for name in names if any(word in name.lower() for word in ("trust", "remotecode", "pickle"))]
