"""What of a pod the operator lives by, so that no patch may change it.

Those are names, ports and paths under which it, gateways and Services find and ask replicas, and what a service's own
spec has said. Called for a pod template before and after an administrator's patches; knows nothing of patches.
"""

from collections.abc import Callable, Iterator
from typing import Final

from kvasir_api import names
from kvasir_kube.kinds import Json

VARIABLES: Final = (names.ENV_LISTEN_ADDRESS, names.ENV_MEMORY_LIMIT, names.ENV_MODEL_URI, names.ENV_SERVICE)
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
SCRATCH: Final = "scratch"
"""A volume that may be of another kind, such as memory, as long as it is there."""


def breach(ours: Json, other: Json) -> str:
    """What of ours another template lacks or has otherwise, as a sentence; empty when all is kept."""
    try:
        return next((said for check in CHECKS for said in check(ours, other)), "")
    except (AttributeError, KeyError, TypeError):
        return "what is left has not the form of a pod template"


def _labels(ours: Json, other: Json) -> Iterator[str]:
    has, given = ours["metadata"]["labels"], other["metadata"]["labels"]
    changed = [key for key, value in has.items() if given.get(key) != value]
    foreign = [key for key in given if key not in has and key.startswith(f"{names.GROUP}/")]
    for key in (*changed, *foreign):
        yield f"label {key} is the operator's own"


def _annotations(ours: Json, other: Json) -> Iterator[str]:
    has, given = ours["metadata"].get("annotations") or {}, other["metadata"].get("annotations") or {}
    for key in {*has, *given}:
        mine = key.startswith(f"{names.GROUP}/") or key == names.ANNOTATION_DELETION_COST
        if mine and has.get(key) != given.get(key):
            yield f"annotation {key} is the operator's own"


def _pod(ours: Json, other: Json) -> Iterator[str]:
    if other["spec"].get("restartPolicy", "Always") != "Always":
        yield "restartPolicy of a replica is Always"
    grace = "terminationGracePeriodSeconds"
    if not isinstance(other["spec"].get(grace), int) or other["spec"][grace] < ours["spec"][grace]:
        yield f"{grace} must be at least {ours['spec'][grace]}, by the service's drain.timeoutSeconds"
    for part in ("volumes", "resourceClaims"):
        given = {item["name"]: item for item in other["spec"].get(part) or ()}
        for item in ours["spec"].get(part) or ():
            kept = item["name"] in given if item["name"] == SCRATCH else given.get(item["name"]) == item
            if not kept:
                yield f"{item['name']} in {part} is the operator's own"


def _containers(ours: Json, other: Json) -> Iterator[str]:
    found = [c for c in other["spec"]["containers"] if c.get("name") == names.CONTAINER_RUNTIME]
    if len(found) != 1:
        yield f"there must be one container named {names.CONTAINER_RUNTIME}"
        return
    ports = _named(ours)["ports"]
    mine, numbers = {port["name"] for port in ports}, {port["containerPort"] for port in ports}
    beside = [*other["spec"]["containers"], *(other["spec"].get("initContainers") or ())]
    for container in beside:
        for port in (container.get("ports") or ()) if container is not found[0] else ():
            if port.get("name") in mine or port.get("containerPort") in numbers:
                yield f"port {port.get('name') or port['containerPort']} is container {names.CONTAINER_RUNTIME}'s own"


def _runtime(ours: Json, other: Json) -> Iterator[str]:
    has, given = _named(ours), _named(other)
    whose = f"of container {names.CONTAINER_RUNTIME}"
    for part in ("args", "command", "terminationMessagePath", "terminationMessagePolicy", "workingDir"):
        if has.get(part) != given.get(part):
            yield f"{part} {whose} is the operator's own"
    for part in PROBES:
        if (given.get(part) or {}).get("httpGet") != has[part]["httpGet"]:
            yield f"httpGet of {part} {whose} is the operator's own"
    for part, key in (("ports", "name"), ("volumeMounts", "mountPath")):
        for item in has[part]:
            if [one for one in given.get(part) or () if one.get(key) == item[key]] != [item]:
                yield f"{item[key]} in {part} {whose} is the operator's own"
    numbers = [port.get("containerPort") for port in given["ports"]]
    if len(numbers) != len(set(numbers)):
        yield f"ports {whose} have a number twice"
    for name in VARIABLES:
        if [v for v in given.get("env") or () if v.get("name") == name] != [v for v in has["env"] if v["name"] == name]:
            yield f"variable {name} {whose} is the operator's own"


def _resources(ours: Json, other: Json) -> Iterator[str]:
    has, given = _named(ours)["resources"], _named(other).get("resources") or {}
    for part in ("requests", "limits"):
        for name, amount in has[part].items():
            if (given.get(part) or {}).get(name) != amount:
                yield f"resources.{part} of {name} are what the service requests"
    for claim in has.get("claims") or ():
        if claim not in (given.get("claims") or ()):
            yield f"resources.claims of {claim['name']} are what the service requests"


def _named(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == names.CONTAINER_RUNTIME)
    return found


CHECKS: Final[tuple[Callable[[Json, Json], Iterator[str]], ...]] = (
    _labels,
    _annotations,
    _pod,
    _containers,
    _runtime,
    _resources,
)
