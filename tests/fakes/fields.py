"""Two values of every field of a spec, between which something must differ."""

from typing import Any

TAINT = {"key": "a", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}
FOREVER = {"key": "a", "operator": "Equal", "value": "v", "effect": "NoExecute"}
CLAIM = {"name": "a", "resourceClaimName": "one"}
SPREAD = {"topologyKey": "topology.kubernetes.io/zone"}
GPU = {"count": 1, "resourceName": "nvidia.com/gpu"}

HUB = {"uri": f"hf://org/name@{'c' * 40}"}
STEPPED = {"steps": [{"replicaPercent": 25, "pauseSeconds": 60}]}


def _rollout_of(strategy: str, missing: int) -> dict[str, Any]:
    return {"strategy": strategy, "maxUnavailable": missing}


ALWAYS = {"start": "00:00", "durationMinutes": 1440}
SCHEDULE = {"start": "23:00", "durationMinutes": 120, "days": ["Wed"], "timeZone": "Etc/UTC", "minReplicas": 2}
"""At the time of the tests' policy, the beginning of a Thursday in 1970, this one is in force."""

CASES: dict[str, tuple[Any, Any]] = {
    "model.uri": ("pvc://models/a", "pvc://models/b"),
    "model.secretName": (HUB, {**HUB, "secretName": "hub"}),
    "model.cacheClaim": (HUB, {**HUB, "cacheClaim": "models"}),
    "model.servedName": ("", "other"),
    "model.aliases": ([], ["another"]),
    "parallelism": ("Manual", "Auto"),
    "reductions": ([], ["Int8KvCache"]),
    "model.inspect": ("Auto", "Always"),
    "runtime.prefixWarmupSeconds": (10, 20),
    "autoscaling.mode": ("Active", "Paused"),
    "autoscaling.minReplicas": (1, 2),
    "autoscaling.maxReplicas": (4, 5),
    "autoscaling.idleSeconds": (300, 60),
    "autoscaling.kvTargetPercent": (85, 80),
    "autoscaling.kvReleasePercent": (70, 60),
    "autoscaling.backlogHorizonSeconds": (0, 90),
    "autoscaling.ttftMilliseconds": (0, 500),
    "autoscaling.itlMilliseconds": (0, 50),
    "autoscaling.schedules[].start": ([SCHEDULE], [{**SCHEDULE, "start": "01:00"}]),
    "autoscaling.schedules[].durationMinutes": ([SCHEDULE], [{**SCHEDULE, "durationMinutes": 30}]),
    "autoscaling.schedules[].days": ([SCHEDULE], [{**SCHEDULE, "days": ["Fri"]}]),
    "autoscaling.schedules[].timeZone": ([SCHEDULE], [{**SCHEDULE, "timeZone": "Asia/Tokyo"}]),
    "autoscaling.schedules[].minReplicas": ([SCHEDULE], [{**SCHEDULE, "minReplicas": 3}]),
    "autoscaling.schedules[].maxReplicas": ([SCHEDULE], [{**SCHEDULE, "maxReplicas": 3}]),
    "autoscaling.scaleUp.percent": (100, 50),
    "autoscaling.scaleUp.pods": (4, 1),
    "autoscaling.scaleUp.periodSeconds": (60, 30),
    "autoscaling.scaleDown.windowSeconds": (300, 60),
    "autoscaling.scaleDown.percent": (25, 50),
    "autoscaling.scaleDown.periodSeconds": (60, 30),
    "roles.prefill.minReplicas": ({"minReplicas": 1, "maxReplicas": 4}, {"minReplicas": 2, "maxReplicas": 4}),
    "roles.prefill.maxReplicas": ({"minReplicas": 0, "maxReplicas": 1}, {"minReplicas": 0, "maxReplicas": 2}),
    "resources.accelerator": (GPU, {**GPU, "count": 0}),
    "resources.accelerator.count": (0, 1),
    "resources.accelerator.resourceName": (GPU, {**GPU, "resourceName": "amd.com/gpu"}),
    "resources.accelerator.classes": ({"count": 1, "classes": ["a"]}, {"count": 1, "classes": ["b"]}),
    "resources.accelerator.minMemory": ({"count": 1, "minMemory": "1Gi"}, {"count": 1, "minMemory": "50Gi"}),
    "resources.accelerator.spot": (
        {"count": 1, "minMemory": "1Gi", "spot": False},
        {"count": 1, "minMemory": "1Gi", "spot": True},
    ),
    "resources.resourceClaims[].name": ([CLAIM], [{**CLAIM, "name": "b"}]),
    "resources.resourceClaims[].resourceClaimName": ([CLAIM], [{**CLAIM, "resourceClaimName": "two"}]),
    "resources.resourceClaims[].resourceClaimTemplateName": (
        [{"name": "a", "resourceClaimTemplateName": "one"}],
        [{"name": "a", "resourceClaimTemplateName": "two"}],
    ),
    "resources.cpu": ("2", "3"),
    "resources.memory": ("4Gi", "5Gi"),
    "runtime.dtype": ("auto", "float32"),
    "runtime.quantization": ("auto", "int8"),
    "runtime.maxModelLen": (0, 512),
    "runtime.kvCacheDtype": ("auto", "int8"),
    "runtime.kvCacheTokens": (0, 512),
    "runtime.kvHostBytes": (0, 1_073_741_824),
    "runtime.weightsHostBytes": (0, 8_589_934_592),
    "runtime.tensorParallelSize": (1, 2),
    "runtime.pipelineParallelSize": (1, 2),
    "runtime.dataParallelSize": (1, 2),
    "runtime.enableExpertParallel": (
        {"tensorParallelSize": 2},
        {"tensorParallelSize": 2, "enableExpertParallel": True},
    ),
    "runtime.nnodes": ({"tensorParallelSize": 2}, {"tensorParallelSize": 2, "nnodes": 2}),
    "runtime.memoryPercent": (90, 80),
    "runtime.blockSize": (16, 32),
    "runtime.prefixCache": (True, False),
    "runtime.sharedPrefixCache": (False, True),
    "runtime.tenantWeights": ("", "team=2,batch=0.5"),
    "runtime.cudaGraphs": (True, False),
    "runtime.batchInvariant": (False, True),
    "runtime.speculation": ("off", "auto"),
    "runtime.suffixDecodingMaxCachedRequests": (0, 64),
    "runtime.maxBatchTokens": (0, 64),
    "runtime.maxSequences": (256, 8),
    "runtime.maxWaiting": (1024, 8),
    "runtime.maxWaitingSeconds": (30, 5),
    "runtime.maxWaitingTokens": (8388608, 65536),
    "runtime.ttftMilliseconds": (0, 2000),
    "runtime.toolCallParser": ("auto", "hermes"),
    "runtime.reasoningParser": ("auto", "none"),
    "runtime.generationConfig": ("auto", "none"),
    "runtime.hfOverrides": ("", '{"max_position_embeddings": 8192}'),
    "runtime.pooling": ("auto", "mean"),
    "runtime.normalize": ("auto", "never"),
    "runtime.matryoshka": (False, True),
    "runtime.scoring": ("auto", "similarity"),
    "rollout.maxSurge": (1, 3),
    "rollout.strategy": ("Surge", "InPlace"),
    "rollout.maxUnavailable": (_rollout_of("InPlace", 1), _rollout_of("InPlace", 2)),
    "rollout.inPlaceAfterSeconds": (240, 0),
    "rollout.steps[].replicaPercent": ([{"replicaPercent": 25}], [{"replicaPercent": 50}]),
    "rollout.steps[].pauseSeconds": (
        [{"replicaPercent": 25, "pauseSeconds": 60}],
        [{"replicaPercent": 25, "pauseSeconds": 6}],
    ),
    "rollout.analysis.minRequests": (
        {"maxErrorPercent": 3, "minRequests": 50},
        {"maxErrorPercent": 3, "minRequests": 500},
    ),
    "rollout.analysis.maxErrorPercent": (5, 3),
    "rollout.analysis.maxTtftRegressionPercent": (0, 50),
    "rollout.autoRollback": (False, True),
    "rollout.paused": (False, True),
    "rollout.promote": (STEPPED, {**STEPPED, "promote": "new"}),
    "rollout.abort": ("", "new"),
    "rollout.progressDeadlineSeconds": (1800, 60),
    "runtimeVersion": ("", "0.2.0"),
    "drain.timeoutSeconds": (600, 30),
    "auth.secretName": ("", "keys"),
    "observability.traceSamplePercent": (0, 5),
    "pod.labels": ({}, {"team": "a"}),
    "pod.annotations": ({}, {"owner": "a@b.c"}),
    "pod.topologySpread[].topologyKey": ([SPREAD], [{**SPREAD, "topologyKey": "kubernetes.io/hostname"}]),
    "pod.topologySpread[].maxSkew": ([SPREAD], [{**SPREAD, "maxSkew": 2}]),
    "pod.topologySpread[].whenUnsatisfiable": ([SPREAD], [{**SPREAD, "whenUnsatisfiable": "DoNotSchedule"}]),
    "pod.nodeSelector": ({}, {"disk": "ssd"}),
    "pod.tolerations[].key": ([TAINT], [{**TAINT, "key": "b"}]),
    "pod.tolerations[].operator": ([{**TAINT, "value": ""}], [{**TAINT, "value": "", "operator": "Exists"}]),
    "pod.tolerations[].value": ([TAINT], [{**TAINT, "value": "w"}]),
    "pod.tolerations[].effect": ([FOREVER], [{**FOREVER, "effect": "NoSchedule"}]),
    "pod.tolerations[].tolerationSeconds": ([TAINT], [{**TAINT, "tolerationSeconds": 6}]),
    "pod.imagePullSecrets[].name": ([{"name": "a"}], [{"name": "b"}]),
}

WHOLE = (
    "secretName",
    "cacheClaim",
    "resourceName",
    "classes",
    "minMemory",
    "spot",
    "maxUnavailable",
    "promote",
    "minRequests",
    "nnodes",
    "enableExpertParallel",
    "minReplicas",
    "maxReplicas",
)
"""Fields that have an effect only beside others: their cases give the whole object."""


def with_value(path: str, value: Any) -> dict[str, Any]:
    """A spec in which the field has that value; of a list, or of fields that need others, the whole is given."""
    parts = path.partition("[]")[0].split(".")
    if isinstance(value, dict) and parts[-1] in WHOLE:
        parts = parts[:-1]
    spec: dict[str, Any] = {"model": {"uri": "pvc://models/a"}, "autoscaling": {}}
    here = spec
    for part in parts[:-1]:
        here = here.setdefault(part, {})
    here[parts[-1]] = value
    return spec
