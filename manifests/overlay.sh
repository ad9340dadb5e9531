#!/usr/bin/env bash
# Writes a kustomization over manifests/base that names images as `make images` tags them: overlay.sh DIRECTORY REGISTRY TAG
set -euo pipefail
directory=$1 registry=$2 tag=$3
mkdir -p "$directory"
base=$(realpath --relative-to="$directory" "$(dirname "$0")/base")
cat > "$directory/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - $base
images:
  - {name: kvasir-operator, newName: ${registry}kvasir-operator, newTag: "$tag"}
  - {name: kvasir-gateway, newName: ${registry}kvasir-gateway, newTag: "$tag"}
patches:
  - target: {kind: Deployment, name: kvasir-operator}
    # Of an option that is given twice the last counts.
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--runtime-image=${registry}kvasir-runtime:$tag"}
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--runtime-image-cpu=${registry}kvasir-runtime-cpu:$tag"}
YAML
