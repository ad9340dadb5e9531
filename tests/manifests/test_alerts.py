"""Rules by the real promtool: each alert fires for what it names and not beside it, and what is recorded is right."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kvasir_api import control_plane_metrics, metrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "manifests" / "components" / "monitoring"
RULES = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
OF = {"namespace": "models", "service": "tiny"}

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="prometheus is not installed")


def series(name, values, **labels):
    """One series of promtool's tests, of the service unless told otherwise. values: in its notation."""
    told = ", ".join(f'{label}="{value}"' for label, value in {**OF, **labels}.items() if value)
    return {"series": f"{name}{{{told}}}", "values": values}


def run(tmp_path, *command, **documents):
    for name, document in documents.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


NONE = {"namespace": "", "service": ""}
RAISED = {
    "KvasirServiceDown": (
        [series("kvasir_service_wanted_replicas", "2x40"), series("kvasir_service_ready_replicas", "0x40")],
        [series("kvasir_service_wanted_replicas", "0x40"), series("kvasir_service_ready_replicas", "0x40")],
    ),
    "KvasirReplicasMissing": (
        [series("kvasir_service_wanted_replicas", "3x40"), series("kvasir_service_ready_replicas", "2x40")],
        [series("kvasir_service_wanted_replicas", "3x40"), series("kvasir_service_ready_replicas", "2x20 3x20")],
    ),
    "KvasirRequestsFailing": (
        [
            series("kvasir_gateway_requests_total", "0+6x40", outcome="server_error"),
            series("kvasir_gateway_requests_total", "0+94x40", outcome="ok"),
        ],
        [
            series("kvasir_gateway_requests_total", "0+4x40", outcome="server_error"),
            series("kvasir_gateway_requests_total", "0+96x40", outcome="ok"),
        ],
    ),
    "KvasirScalingAtMaximum": (
        [
            series("kvasir_service_required_replicas", "5x40"),
            series("kvasir_service_replica_bounds", "4x40", bound="max"),
        ],
        [
            series("kvasir_service_required_replicas", "4x40"),
            series("kvasir_service_replica_bounds", "4x40", bound="max"),
            series("kvasir_service_replica_bounds", "1x40", bound="min"),
        ],
    ),
    "KvasirReadingsMissing": (
        [series("kvasir_service_scaling_limited", "1x40", limited_by="readings")],
        [series("kvasir_service_scaling_limited", "1x40", limited_by="window")],
    ),
    "KvasirKvCacheExhausted": (
        [series("kvasir_preemptions_total", "0+12x40", pod="a")],
        [series("kvasir_preemptions_total", "0+1x40", pod="a")],
    ),
    "KvasirLoadUneven": (
        [series("kvasir_service_imbalance_fraction", "0.6x40")],
        [series("kvasir_service_imbalance_fraction", "0.3x40")],
    ),
    "KvasirInvalidOutputs": (
        [series("kvasir_invalid_outputs_total", "0x30 1x10", pod="a")],
        [series("kvasir_invalid_outputs_total", "0x10 1x30", pod="a")],
    ),
    "KvasirStepsWithoutMemory": (
        [series("kvasir_step_memory_failures_total", "0x30 3x10", pod="a")],
        [series("kvasir_step_memory_failures_total", "0x30 1x10", pod="a")],
    ),
    "KvasirGatewayWithoutEndpoints": (
        [
            series("kvasir_gateway_endpoints", "0x40", state="ready"),
            series("kvasir_gateway_requests_total", "0+1x40", outcome="client_error"),
        ],
        [
            series("kvasir_gateway_endpoints", "0x40", state="ready"),
            series("kvasir_gateway_requests_total", "7x40", outcome="ok"),
        ],
    ),
    "KvasirGatewayBlind": (
        [
            series("kvasir_gateway_choices_total", "0+6x40", reason="no_reading"),
            series("kvasir_gateway_choices_total", "0+4x40", reason="cheapest"),
        ],
        [
            series("kvasir_gateway_choices_total", "0+4x40", reason="no_reading"),
            series("kvasir_gateway_choices_total", "0+6x40", reason="cheapest"),
        ],
    ),
    "KvasirOperatorMissing": (
        [series("kvasir_operator_leading", "1x30 0x10", pod="a", **NONE)],
        [
            series("kvasir_operator_leading", "0x40", pod="a", **NONE),
            series("kvasir_operator_leading", "1x40", pod="b", **NONE),
        ],
    ),
    "KvasirOperatorFailing": (
        [series("kvasir_operator_reconciles_total", "0+12x40", outcome="error", **NONE)],
        [
            series("kvasir_operator_reconciles_total", "0+1x40", outcome="error", **NONE),
            series("kvasir_operator_reconciles_total", "0+99x40", outcome="ok", **NONE),
        ],
    ),
    "KvasirWatchesStale": (
        [
            series("kvasir_operator_leading", "1x40", pod="a", service=""),
            series("kvasir_operator_listed_seconds_ago", "0+60x40", pod="a", service=""),
        ],
        # The other one stands by, and lists nothing.
        [
            series("kvasir_operator_leading", "0x40", pod="a", service=""),
            series("kvasir_operator_listed_seconds_ago", "0+60x40", pod="a", service=""),
            series("kvasir_operator_leading", "1x40", pod="b", service=""),
            series("kvasir_operator_listed_seconds_ago", "0x40", pod="b", service=""),
        ],
    ),
}
"""By alert: series of 40 minutes at whose end it fires, and such at whose end it does not."""


@promtool
def test_promtool_takes_the_rules(tmp_path):
    run(tmp_path, "check", "rules", "--lint-fatal", "rules.yaml", rules=RULES)


@promtool
@pytest.mark.parametrize("name", ALERTS)
@pytest.mark.parametrize("fires", [True, False])
def test_an_alert_fires_for_what_it_names_alone(tmp_path, name, fires):
    rule = ALERTS[name]
    # Only its own labels and annotations with their values filled in tell that the templates are right.
    expected = [{"exp_labels": {"severity": rule["labels"]["severity"], **of(name)}, "exp_annotations": said(name)}]
    case = {
        "interval": "1m",
        "input_series": RAISED[name][not fires],
        "alert_rule_test": [{"eval_time": "40m", "alertname": name, "exp_alerts": expected if fires else []}],
    }
    run(tmp_path, "test", "rules", "test.yaml", rules=RULES, test={"rule_files": ["rules.yaml"], "tests": [case]})


def of(name):
    """Labels of the alert beside its severity."""
    if name.startswith(("KvasirOperator", "KvasirWatches")):
        return {}
    return {**OF, **({"limited_by": "readings"} if name == "KvasirReadingsMissing" else {})}


VALUES = {
    "KvasirRequestsFailing": "6%",
    "KvasirScalingAtMaximum": "5",
    "KvasirKvCacheExhausted": "200m",
    "KvasirLoadUneven": "60%",
    "KvasirOperatorFailing": "200m",
    "KvasirWatchesStale": "40m 0s",
}


def said(name):
    """The annotations with their places filled in."""
    annotations = dict(ALERTS[name]["annotations"])
    words = annotations["summary"].replace("{{ $labels.namespace }}/{{ $labels.service }}", "models/tiny")
    begin, found, rest = words.partition("{{ $value")
    annotations["summary"] = f"{begin}{VALUES[name]}{rest.partition('}}')[2]}" if found else words
    return annotations


PRICES = [
    series("kvasir_service_price_per_hour", "400x10", accelerator_class="h100"),
    series("kvasir_service_price_per_hour", "100x10", accelerator_class="l4", service="small"),
    series("kvasir_service_class_tokens_per_price_unit", "9000x10", accelerator_class="h100"),
    series("kvasir_service_class_tokens_per_price_unit", "7000x10", accelerator_class="l4"),
    series("kvasir_generation_tokens_total", "0+60000x10", pod="a"),
    series("kvasir_generation_tokens_total", "0+60000x10", pod="b"),
    series("kvasir_generation_tokens_total", "0+6000x10", pod="c", service="small"),
    series("kvasir_tenant_kv_token_seconds_total", "0+45000x10", pod="a", tenant="red"),
    series("kvasir_tenant_kv_token_seconds_total", "0+15000x10", pod="b", tenant="blue"),
    series("kvasir_tenant_generation_tokens_total", "0+60000x10", pod="a", tenant="red"),
    series("kvasir_tenant_generation_tokens_total", "0+60000x10", pod="b", tenant="blue"),
    series("kvasir_service_price_per_hour", "400x10", accelerator_class="h100", service="moving"),
    series("kvasir_service_price_per_hour", "100x10", accelerator_class="l4", service="moving"),
    series("kvasir_tenant_kv_token_seconds_total", "0+6000x10", service="moving", tenant="red"),
]


@promtool
@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        # 2,000 tokens/s are 7.2 million an hour, which costs 400.
        ('kvasir:service_tokens_per_price_unit{service="tiny"}', {"accelerator_class": "h100", **OF, "value": 18_000}),
        ('kvasir:class_tokens_per_price_unit{accelerator_class="l4"}', {"accelerator_class": "l4", "value": 3_600}),
        ("kvasir:service_cheapest_class", {"accelerator_class": "h100", **OF, "value": 9_000}),
        # A tenant pays for its part of the KV cache: three quarters of 400 buy red half of the service's tokens.
        (
            'kvasir:tenant_price_per_hour{tenant="blue"}',
            {"accelerator_class": "h100", **OF, "tenant": "blue", "value": 100},
        ),
        (
            'kvasir:tenant_tokens_per_price_unit{tenant="red"}',
            {"accelerator_class": "h100", **OF, "tenant": "red", "value": 12_000},
        ),
        # Of a service on two classes it is the price of both.
        (
            'kvasir:tenant_price_per_hour{service="moving"}',
            {"namespace": "models", "service": "moving", "tenant": "red", "value": 500},
        ),
    ],
)
def test_what_a_unit_of_price_buys_is_recorded(tmp_path, recorded, expected):
    value = expected.pop("value")
    labels = ", ".join(f'{name}="{text}"' for name, text in expected.items())
    sample = {"labels": f"{{{labels}}}", "value": value}
    case = {
        "interval": "1m",
        "input_series": PRICES,
        "promql_expr_test": [{"expr": f"round({recorded})", "eval_time": "10m", "exp_samples": [sample]}],
    }
    run(tmp_path, "test", "rules", "test.yaml", rules=RULES, test={"rule_files": ["rules.yaml"], "tests": [case]})


def test_every_alert_has_a_case():
    assert set(RAISED) == set(ALERTS)


def test_rules_read_declared_metrics_alone():
    declared = (*metrics.RUNTIME, *control_plane_metrics.OPERATOR, *control_plane_metrics.GATEWAY)
    known = {metric.name for metric in declared}
    text = " ".join(rule["expr"] for group in RULES["groups"] for rule in group["rules"])
    used = {
        word for word in text.replace("(", " ").replace("{", " ").replace("[", " ").split() if word[:7] == "kvasir_"
    }
    assert {word.strip(",)") for word in used} <= known
