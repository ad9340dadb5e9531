#!/usr/bin/env bash
# Deploys the services of a folder of manifests from a pipeline:
#   deploy.sh plan | diff | apply | wait | smoke
# FOLDER (models) has the manifests, in subfolders too. The namespace is that of the kubeconfig's context.
# plan:  MEMORY of the device (22Gi) and further options of `kvasir plan` in PLAN_OPTIONS
# wait:  TIMEOUT_S (1800)
# smoke: GATEWAY, the base URL without /v1, and API_KEY where the gateway needs one
set -euo pipefail
folder=${FOLDER:-models}

# Lines FILE, TAB, URI of its InferenceService's model; without a uri where a file has no InferenceService. Python reads the
# YAML (PyYAML is in the runtime's image): a model whose line a pattern misses would pass without being read.
uris() {
  find "$folder" -type f \( -name '*.yaml' -o -name '*.yml' -o -name '*.json' \) -print0 | sort -z |
    xargs -0 --no-run-if-empty python -c '
import sys, yaml

def services(documents):
    for one in documents:
        kind = one.get("kind") if isinstance(one, dict) else None
        if kind == "List":
            yield from services(one["items"])
        elif kind == "InferenceService":
            yield one

for path in sys.argv[1:]:
    try:
        with open(path, encoding="utf-8") as text:
            found = [service["spec"]["model"]["uri"] for service in services(yaml.safe_load_all(text))]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        sys.exit(f"{path}: no spec.model.uri can be read: {error!r}")
    for uri in found or [""]:
        print(path, uri, sep="\t")
'
}

# Does each model fit, before anything is changed? Only its config is read. Models on claims are in the cluster alone.
plan() {
  local found file model
  found=$(uris)
  if [ -z "$found" ]; then echo "no manifests below $folder" >&2; return 1; fi
  while IFS=$'\t' read -r file model; do
    case $model in
      "" | pvc:* | file:*) echo "$file: nothing to read here" ;;
      # shellcheck disable=SC2086 # several options
      *) kvasir plan "$model" --device cuda --memory "${MEMORY:-22Gi}" ${PLAN_OPTIONS:-} </dev/null ;;
    esac
  done <<<"$found"
}

# What would change. A field that the API server refuses fails here, before it is merged.
diff() {
  kubectl diff --server-side --force-conflicts --recursive --filename "$folder" || [ $? = 1 ] # 1: there are differences
}

apply() {
  kubectl apply --server-side --force-conflicts --recursive --filename "$folder"
}

services() {
  kubectl get --recursive --filename "$folder" --output name | grep '^inferenceservice'
}

# Until every service serves the spec that was applied. A stalled one needs a person, so nothing is waited for then.
wait() {
  local found service generation seen stalled reconciling ready message told one
  local until=$((SECONDS + ${TIMEOUT_S:-1800}))
  local status='{.metadata.generation}|{.status.observedGeneration}'
  for one in Stalled Reconciling Ready; do
    status+="|{.status.conditions[?(@.type==\"$one\")].status}"
  done
  status+='|{.status.conditions[?(@.type=="Ready")].message}'
  found=$(services)
  for service in $found; do
    told=""
    while true; do
      IFS='|' read -r generation seen stalled reconciling ready message \
        <<<"$(kubectl get "$service" --output "jsonpath=$status")"
      if [ "$message" != "$told" ]; then echo "$service: $message"; fi
      told=$message
      if [ "$seen" = "$generation" ]; then
        if [ "$stalled" = True ]; then return 1; fi
        if [ "$ready" = True ] && [ "$reconciling" != True ]; then break; fi
      fi
      if ((SECONDS >= until)); then echo "$service: not within ${TIMEOUT_S:-1800} s" >&2; return 1; fi
      sleep 1
    done
  done
}

# POST a body to the gateway. Headers by standard input, since every process of the machine may read arguments.
ask() {
  local headers="content-type: application/json"
  if [ -n "${API_KEY:-}" ]; then headers+=$'\n'"authorization: Bearer $API_KEY"; fi
  curl --fail-with-body --silent --show-error --max-time 600 --header @- "$GATEWAY/$1" --data "$2" <<<"$headers"
}

# One answer of each service by its model name, as a client gets it: text, else a vector, else a score.
smoke() {
  local found service model answer path
  found=$(services)
  for service in $found; do
    model=$(kubectl get "$service" --output 'jsonpath={.status.modelName}')
    local -A bodies=(
      [v1/chat/completions]='"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8'
      [v1/embeddings]='"input": "Hello"'
      [v1/score]='"text_1": "Hello", "text_2": "Hello"'
    )
    for path in v1/chat/completions v1/embeddings v1/score; do
      if answer=$(ask "$path" "{\"model\": \"$model\", ${bodies[$path]}}"); then
        echo "$service answers at /$path"
        continue 2
      fi
      if [[ $answer != *unsupported_model* ]]; then break; fi
    done
    echo "$service: no answer at /$path: $answer" >&2
    return 1
  done
}

case ${1:-} in
  plan | diff | apply | wait | smoke) "$1" ;;
  *) sed -n '2,7s/^# \?//p' "$0" >&2; exit 2 ;;
esac
