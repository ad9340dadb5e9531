"""A real Prometheus (Debian: apt install prometheus) scrapes a runtime and answers the queries that dashboards make.

Skipped where it is not installed; what it would find wrong in the text is also checked without it in test_metrics.py.
"""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from kvasir_local import addresses

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
- job_name: kvasir
  static_configs: [{{targets: ["{host}:{port}"]}}]
"""
QUERIES = {
    "vllm:num_requests_running": 0.0,
    "vllm:kv_cache_usage_perc": 0.0,
    'vllm:request_success_total{finished_reason="length"}': 3.0,
    "vllm:request_generation_tokens_sum / vllm:request_generation_tokens_count": 4.0,
    "count(vllm:cache_config_info)": 1.0,
    "histogram_quantile(0.5, sum by (le) (vllm:request_params_max_tokens_bucket)) > bool 2": 1.0,
    'sum(http_requests_total{handler="/v1/completions"})': 3.0,
    "kvasir_ready": 1.0,
    "up": 1.0,
}

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    (port,) = addresses.free_ports(1)
    with api_process(checkpoints.write(folder / "tiny")) as server:
        for _ in range(3):
            body = {"model": "tiny", "prompt": "the plan", "max_tokens": 4}
            assert server.ask("/v1/completions", body).status == 200
        host, target = server.http
        (folder / "prometheus.yml").write_text(CONFIG.format(host=host, port=target))
        arguments = ["--config.file", str(folder / "prometheus.yml"), "--storage.tsdb.path", str(folder / "data")]
        arguments += ["--web.listen-address", f"127.0.0.1:{port}"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(["prometheus", *arguments], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.kill()
            process.wait()


def ask(url: str, query: str) -> list[float]:
    encoded = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{url}/query?{encoded}", timeout=60) as response:
        return [float(series["value"][1]) for series in json.load(response)["data"]["result"]]


def test_the_queries_of_dashboards_have_answers(prometheus):
    deadline = time.monotonic() + 60
    seen = {}
    while seen != QUERIES:
        assert time.monotonic() < deadline, seen
        try:
            seen = {query: next(iter(ask(prometheus, query)), None) for query in QUERIES}
        except (urllib.error.URLError, ConnectionError):
            seen = {}
        time.sleep(0.05)
