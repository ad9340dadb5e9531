#!/usr/bin/env bash
# Writes a kustomization over manifests/base that names images as `make images` tags them, with components if any, and for
# the services of one namespace if one is named: overlay.sh DIRECTORY REGISTRY TAG [COMPONENTS [NAMESPACE]]
# ENVOY_REPOSITORY, of the environment, is where Envoy's image is pulled from: where another registry has a copy of it.
set -euo pipefail
directory=$1 registry=$2 tag=$3 components=${4:-} namespace=${5:-}
mkdir -p "$directory"
manifests=$(realpath --relative-to="$directory" "$(dirname "$0")")
[[ -z $namespace || " $components " == *" namespaced "* ]] || components="namespaced $components"
cat > "$directory/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - $manifests/base
components: [$(for name in $components; do printf '%s, ' "$manifests/components/$name"; done)]
images:
  - {name: kvasir-operator, newName: ${registry}kvasir-operator, newTag: "$tag"}
  - {name: kvasir-gateway, newName: ${registry}kvasir-gateway, newTag: "$tag"}
  - {name: envoyproxy/envoy, newName: "${ENVOY_REPOSITORY:-envoyproxy/envoy}"}
patches:
  - target: {kind: Deployment, name: kvasir-operator}
    # Of an option that is given twice the last counts.
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--runtime-image=${registry}kvasir-runtime:$tag"}
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--runtime-image-cpu=${registry}kvasir-runtime-cpu:$tag"}
YAML
[[ -z $namespace ]] || cat >> "$directory/kustomization.yaml" <<YAML
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--namespace=$namespace"}
  - target: {kind: Deployment, name: kvasir-gateway}
    patch: |
      - {op: add, path: /spec/template/spec/containers/1/args/-, value: "--namespace=$namespace"}
  - target: {kind: RoleBinding, name: ^kvasir-(operator|gateway)\$}
    patch: |
      - {op: replace, path: /metadata/namespace, value: "$namespace"}
YAML
