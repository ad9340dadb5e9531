# The runtime for CPUs. No Kubernetes client.
# The pins name the CUDA build of torch, which computes on a CPU as well but is large. --build-arg TORCH_INDEX_URL=… takes the
# pinned version of it, and nothing else, from an index of CPU builds instead; its hash is not in the pins, so name only
# an index that you trust.
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS pins
WORKDIR /src
COPY constraints.txt pyproject.toml ./
# What the project depends on and no more: its version, its words and the settings of tools change more often than the
# layer of the libraries should.
RUN sed -i '/^\[project\.scripts\]/,$d; s/^version = .*/version = "0"/; /^description = /d' pyproject.toml && touch -d @0 constraints.txt pyproject.toml

# Compiles the CPU kernels, again only when they change; the image that is served from carries the result alone.
FROM ${PYTHON_IMAGE} AS kernels
RUN apt-get update && apt-get install -y --no-install-recommends g++ libc6-dev && rm -rf /var/lib/apt/lists/*
COPY runtime/kvasir_runtime/kernels/cpu /kernels
RUN python /kernels/build.py

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY --from=pins /src/constraints.txt /src/pyproject.toml ./
# uv comes from the pins, checked by hash; it checks the hashes of everything else.
RUN awk '/^[^ ]/ {keep = /^uv==/} keep' constraints.txt | pip install --no-cache-dir --require-hashes -r /dev/stdin \
 && python -m venv --without-pip /opt/kvasir
# What was downloaded is kept beside the layers, for the next build.
ENV VIRTUAL_ENV=/opt/kvasir UV_LINK_MODE=copy UV_CACHE_DIR=/var/cache/uv
# The wheel of torch requires CUDA libraries to load, and others that a processor never uses: those stay
# out, and so do the parts of cuDNN, which its library opens when a device computes.
RUN printf '%s ; python_version < "0"\n' triton nvidia-cusolver cuda-bindings nvidia-cuda-cccl nvidia-nvjitlink nvidia-nvtx >unused.txt
ARG TORCH_INDEX_URL=
RUN --mount=type=cache,target=/var/cache/uv \
    test -z "$TORCH_INDEX_URL" || uv pip install --no-deps --index-url "$TORCH_INDEX_URL" "$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)"
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --compile-bytecode -r pyproject.toml --extra runtime --extra otel -c constraints.txt --override unused.txt \
 && rm -f /opt/kvasir/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn_*

# A stage and a layer of its own: the layer of the libraries stays the same while their pins do.
FROM build AS project
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY images/sbom.py images/
COPY crds crds
COPY operator operator
COPY runtime runtime
COPY --from=kernels /kernels/libkvasir.so runtime/kvasir_runtime/kernels/cpu/
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --compile-bytecode --no-deps --build-constraints constraints.txt --target /opt/project . \
 && mv /opt/project/bin /opt/scripts \
 && python images/sbom.py kvasir-runtime-cpu /opt/kvasir/lib/python3.11/site-packages /opt/project >/opt/sbom.cdx.json

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/kvasir /opt/kvasir
COPY --from=project /opt/sbom.cdx.json /opt/kvasir/sbom.cdx.json
COPY --from=project /opt/scripts /opt/kvasir/bin
COPY --from=project /opt/project /opt/kvasir/lib/python3.11/site-packages
ENV PATH=/opt/kvasir/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
ARG PYTHON_IMAGE VERSION= REVISION=
LABEL org.opencontainers.image.title="kvasir-runtime-cpu" org.opencontainers.image.description="Serves models on CPUs" \
      org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.base.name="$PYTHON_IMAGE" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$REVISION"
# A number, so that runAsNonRoot can be checked without reading the image's passwd file.
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["/opt/kvasir/bin/kvasir", "serve"]
