"""Grafana dashboards from the declarations of metrics, as ConfigMaps that Grafana's sidecar loads.

`monitoring.py` writes them. A metric has a panel by being declared: those of a replica on the dashboard of the engine,
those of a service on that of the autoscaler, those of operator and gateway on that of the fleet. What sets several in
relation is one line below.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from kvasir_api import control_plane_metrics, machine_metrics, metrics
from kvasir_api.metric import Metric

DATASOURCE: Final = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH, HEIGHT = 8, 8
QUANTILES: Final = (0.5, 0.99)
SERVICE: Final = ("namespace", "service")
OF_A_SERVICE: Final = 'namespace="$namespace", service="$service"'
OF_PODS: Final = f'{OF_A_SERVICE}, pod=~"$pod"'
SHARE, SECONDS, COUNT = "percentunit", "s", "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One query of a panel. legend: in Grafana's braces."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSpec:
    """One panel. unit: one of Grafana's."""

    title: str
    unit: str
    series: tuple[Series, ...]
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSpec:
    """One dashboard: rows of panels. variables: each with the query of its values."""

    name: str
    rows: dict[str, tuple[PanelSpec, ...]]
    variables: tuple[tuple[str, str], ...] = ()


def panel(title: str, unit: str, *series: tuple[str, str]) -> PanelSpec:
    """series: (query, legend) pairs."""
    return PanelSpec(title=title, unit=unit, series=tuple(Series(expr=expr, legend=legend) for expr, legend in series))


def drawn(metric: Metric, *, of: str = "", by: tuple[str, ...] = ()) -> PanelSpec:
    """The panel of one metric. of: which of its series; by: the labels that remain."""
    title = metric.name.removeprefix("kvasir_").removesuffix("_total").replace("_", " ")
    unit = SECONDS if metric.name.endswith("_seconds") else COUNT
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    if metric.kind == "histogram":
        series = tuple(
            Series(expr=quantile(q, metric.name, of=of, by=by), legend=f"p{100 * q:.0f} {legend}".strip())
            for q in QUANTILES
        )
    else:
        expr = rate(metric.name, of=of, by=by) if metric.kind == "counter" else total(metric.name, of=of, by=by)
        series = (Series(expr=expr, legend=legend),)
        unit = "ops" if metric.kind == "counter" else unit
    return PanelSpec(title=title[:1].upper() + title[1:], unit=unit, series=series, help=metric.help)


def total(name: str, *, of: str = "", by: Iterable[str] = ()) -> str:
    """The sum of gauges."""
    return f"sum by ({', '.join(by)}) ({name}{{{of}}})"


def rate(name: str, *, of: str = "", by: Iterable[str] = ()) -> str:
    """Per second."""
    return f"sum by ({', '.join(by)}) (rate({name}{{{of}}}[$__rate_interval]))"


def quantile(q: float, name: str, *, of: str = "", by: Iterable[str] = ()) -> str:
    """Of a histogram."""
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', of=of, by=('le', *by))})"


def _beside(metric: Metric) -> tuple[str, ...]:
    return tuple(label for label in metric.labels if label not in SERVICE)


def _latency(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((quantile(q, name, of=OF_A_SERVICE), f"p{100 * q:.0f}") for q in QUANTILES)


def _utilization(what: str) -> str:
    """Work per second of a service's cards by what they could do; nothing where that is not known."""
    done = {"flops": "kvasir_model_flops_total", "bytes": "kvasir_model_read_bytes_total"}[what]
    return f"{rate(done, of=OF_A_SERVICE)} / ({total(f'kvasir_device_peak_{what}_per_second', of=OF_A_SERVICE)} > 0)"


_PROCESSES = (("process", "API"), (f"{machine_metrics.ENGINE_PROCESS}_process", "engine"))
_OF_A_SERVICE = [m for m in control_plane_metrics.OPERATOR if "service" in m.labels]
_BY = "{{namespace}}/{{service}}"
_ENDED = "kvasir_gateway_requests_total"
_SERVER_ERRORS = rate(_ENDED, of='outcome="server_error"', by=SERVICE)
_FAILED = f"{_SERVER_ERRORS} or 0 * {rate(_ENDED, by=SERVICE)}"
_NAMESPACES = ("namespace", "label_values(kvasir_service_wanted_replicas, namespace)")
_SERVICES = ("service", 'label_values(kvasir_service_wanted_replicas{namespace="$namespace"}, service)')
_PODS = ("pod", f"label_values(kvasir_ready{{{OF_A_SERVICE}}}, pod)")

FLEET: Final = DashboardSpec(
    name="fleet",
    rows={
        "Services": (
            panel("Replicas", COUNT, (total("kvasir_service_ready_replicas"), "ready"), (total("kvasir_service_wanted_replicas"), "wanted")),
            panel("Requests per second", "reqps", (rate(_ENDED, by=SERVICE), _BY)),
            panel("Share of requests that failed", SHARE, (f"({_FAILED}) / {rate(_ENDED, by=SERVICE)}", _BY)),
            panel("Time to first token, p99", SECONDS, (quantile(0.99, "kvasir_time_to_first_token_seconds", by=SERVICE), _BY)),
            panel("Generated tokens per second", COUNT, (rate("kvasir_generation_tokens_total", by=SERVICE), _BY)),
            panel("Pinned share of the KV cache", SHARE, (f"{total('kvasir_kv_pinned_tokens', by=SERVICE)} / {total('kvasir_kv_capacity_tokens', by=SERVICE)}", _BY)),
        ),
        "Cost": (
            panel("Price per hour", COUNT, (total("kvasir_service_price_per_hour", by=SERVICE), _BY)),
            panel("Tokens for one unit of price, by service", COUNT, ("kvasir:service_tokens_per_price_unit", f"{_BY} on {{{{accelerator_class}}}}")),
            panel("Tokens for one unit of price, by class", COUNT, ("kvasir:class_tokens_per_price_unit", "{{accelerator_class}}")),
            panel("Price per hour, by tenant", COUNT, ("kvasir:tenant_price_per_hour", f"{_BY} {{{{tenant}}}}")),
            panel("Tokens for one unit of price, by tenant", COUNT, ("kvasir:tenant_tokens_per_price_unit", f"{_BY} {{{{tenant}}}} on {{{{accelerator_class}}}}")),
            panel("The cheapest class, by forecast", COUNT, ("kvasir:service_cheapest_class", f"{_BY} on {{{{accelerator_class}}}}")),
        ),
        "Gateway": tuple(drawn(m, by=m.labels) for m in control_plane_metrics.GATEWAY),
        "Operator": tuple(drawn(m, by=m.labels) for m in control_plane_metrics.OPERATOR if m not in _OF_A_SERVICE),
    },
)  # fmt: skip

SERVICE_DASHBOARD: Final = DashboardSpec(
    name="service",
    variables=(_NAMESPACES, _SERVICES),
    rows={
        "Answers": (
            panel("Time to first token", SECONDS, *_latency("kvasir_time_to_first_token_seconds")),
            panel("Time between tokens", SECONDS, *_latency("kvasir_inter_token_seconds")),
            panel("Duration", SECONDS, *_latency("kvasir_request_duration_seconds")),
            panel("Requests ended per second", "reqps", (rate("kvasir_requests_total", of=OF_A_SERVICE, by=("finish_reason",)), "{{finish_reason}}")),
            panel("Requests rejected per second", "reqps", (rate("kvasir_requests_rejected_total", of=OF_A_SERVICE, by=("code",)), "{{code}}")),
            panel("HTTP requests per second", "reqps", (rate("http_requests_total", of=OF_A_SERVICE, by=("handler", "status")), "{{handler}} {{status}}")),
        ),
        "Load": (
            panel("Requests", COUNT, (total("kvasir_requests_running", of=OF_A_SERVICE), "running"), (total("kvasir_requests_waiting", of=OF_A_SERVICE), "waiting"), (total("kvasir_gateway_inflight_requests", of=OF_A_SERVICE), "forwarded by gateways")),
            panel("Tokens per second", COUNT, (rate("kvasir_prompt_tokens_total", of=OF_A_SERVICE), "prompt"), (rate("kvasir_generation_tokens_total", of=OF_A_SERVICE), "generated")),
            panel("KV cache, tokens", COUNT, *((total(f"kvasir_kv_{part}_tokens", of=OF_A_SERVICE), part) for part in ("pinned", "cached", "free"))),
            panel("Prompt tokens found in the prefix cache", SHARE, (f"{rate('kvasir_prefix_hit_tokens_total', of=OF_A_SERVICE)} / {rate('kvasir_prefix_query_tokens_total', of=OF_A_SERVICE)}", "")),
            panel("Preemptions per second", "ops", (rate("kvasir_preemptions_total", of=OF_A_SERVICE, by=("pod",)), "{{pod}}")),
            panel("Replicas", COUNT, (total("kvasir_service_ready_replicas", of=OF_A_SERVICE), "ready"), (total("kvasir_service_wanted_replicas", of=OF_A_SERVICE), "wanted")),
        ),
        "Utilization": (
            panel("Model FLOP/s (MFU), of the cards' peak", SHARE, (_utilization("flops"), "")),
            panel("Memory bandwidth (MBU), of the cards' peak", SHARE, (_utilization("bytes"), "")),
            panel("Share of the time in which engines compute", SHARE, (rate("kvasir_engine_busy_seconds_total", of=OF_A_SERVICE, by=("pod",)), "{{pod}}")),
            panel("Cards in use", SHARE, (total("kvasir_gpu_utilization_fraction", of=OF_A_SERVICE, by=("pod", "gpu")), "{{pod}} {{gpu}}")),
            panel("Processor cores in use", COUNT, *((rate(f"{name}_cpu_seconds_total", of=OF_A_SERVICE, by=("pod",)), f"{{{{pod}}}} {who}") for name, who in _PROCESSES)),
            panel("Memory in use", "bytes", *((total(f"{name}_resident_memory_bytes", of=OF_A_SERVICE, by=("pod",)), f"{{{{pod}}}} {who}") for name, who in _PROCESSES)),
            panel("Seconds of computing saved by the prefix cache, per second", COUNT, (rate("kvasir_prefix_saved_seconds_total", of=OF_A_SERVICE, by=("pod",)), "{{pod}}")),
        ),
        "Tenants": (
            panel("Share of the KV cache in use", SHARE, (f"{rate('kvasir_tenant_kv_token_seconds_total', of=OF_A_SERVICE, by=('tenant',))} / on () group_left () {rate('kvasir_tenant_kv_token_seconds_total', of=OF_A_SERVICE)}", "{{tenant}}")),
            panel("Prompt tokens per second", COUNT, (rate("kvasir_tenant_prompt_tokens_total", of=OF_A_SERVICE, by=("tenant",)), "{{tenant}}")),
            panel("Generated tokens per second", COUNT, (rate("kvasir_tenant_generation_tokens_total", of=OF_A_SERVICE, by=("tenant",)), "{{tenant}}")),
        ),
    },
)  # fmt: skip

ENGINE: Final = DashboardSpec(
    name="engine",
    variables=(_NAMESPACES, _SERVICES, _PODS),
    rows={
        row: tuple(
            drawn(m, of=OF_PODS, by=("pod", *(label for label in m.labels if label != "model_name")))
            for m in found
            if m.kind == kind
        )
        for row, kind, found in (
            ("State", "gauge", metrics.RUNTIME),
            ("Per second", "counter", metrics.RUNTIME),
            ("Latency", "histogram", metrics.RUNTIME),
            ("Cards", "gauge", machine_metrics.GPU),
        )
    },
)

AUTOSCALER: Final = DashboardSpec(
    name="autoscaler",
    variables=(_NAMESPACES, _SERVICES),
    rows={
        "What was wanted": (
            panel(
                "Replicas",
                COUNT,
                *((total(f"kvasir_service_{part}_replicas", of=OF_A_SERVICE), part) for part in ("required", "wanted", "ready")),
                (total("kvasir_service_replica_bounds", of=OF_A_SERVICE, by=("bound",)), "{{bound}}"),
            ),
        ),
        "What determined it, and what it cost": tuple(drawn(m, of=OF_A_SERVICE, by=_beside(m)) for m in _OF_A_SERVICE),
    },
)  # fmt: skip

DASHBOARDS: Final = (FLEET, SERVICE_DASHBOARD, ENGINE, AUTOSCALER)


def config_maps() -> list[dict[str, Any]]:
    """A ConfigMap for each dashboard, with the label by which Grafana's sidecar finds it."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"kvasir-dashboard-{spec.name}",
                "namespace": "kvasir-system",
                "labels": {"app.kubernetes.io/part-of": "kvasir", "grafana_dashboard": "1"},
            },
            "data": {f"kvasir-{spec.name}.json": _text(spec)},
        }
        for spec in DASHBOARDS
    ]


def _text(spec: DashboardSpec) -> str:
    """JSON with one line for each panel."""
    document = json.loads(JSONEncoder(sort_keys=True).encode(_built(spec)))
    panels = ",\n".join(json.dumps(panel, ensure_ascii=False) for panel in document.pop("panels"))
    head = json.dumps(document, ensure_ascii=False).removesuffix("}")
    return f'{head}, "panels": [\n{panels}\n]}}\n'


def _built(spec: DashboardSpec) -> dashboard_models.Dashboard:
    built = (
        dashboard.Dashboard(f"Kvasir: {spec.name}")
        .uid(f"kvasir-{spec.name}")
        .tags(["kvasir"])
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(dashboard_models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .link(dashboard.DashboardLink("Kvasir").type(dashboard_models.DashboardLinkType.DASHBOARDS).tags(["kvasir"]).as_dropdown(True).keep_time(True))
    )  # fmt: skip
    for name, query in spec.variables:
        variable = dashboard.QueryVariable(name).query(query).datasource(DATASOURCE)
        variable = variable.refresh(dashboard_models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        built = built.with_variable(variable.multi(True).include_all(True) if name == "pod" else variable)
    for title, panels in spec.rows.items():
        built = built.with_row(dashboard.Row(title))
        for one in panels:
            built = built.with_panel(_panel(one))
    return built.build()


def _panel(spec: PanelSpec) -> timeseries.Panel:
    made = timeseries.Panel().title(spec.title).unit(spec.unit).datasource(DATASOURCE).span(WIDTH).height(HEIGHT)
    made = made.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
    ).tooltip(
        common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    )
    made = made.description(spec.help) if spec.help else made
    for number, series in enumerate(spec.series):
        query = prometheus.Dataquery().expr(series.expr).legend_format(series.legend).ref_id(chr(ord("A") + number))
        made = made.with_target(query.range())
    return made
