# The runtime with CUDA: torch brings its CUDA libraries as wheels, the node brings the driver. No Kubernetes client.
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE hatch_build.py ./
# uv comes from the pins, checked by hash; it checks the hashes of everything else.
RUN awk '/^[^ ]/ {keep = /^uv==/} keep' constraints.txt | pip install --no-cache-dir --require-hashes -r /dev/stdin \
 && python -m venv --without-pip /opt/kvasir
ENV VIRTUAL_ENV=/opt/kvasir UV_NO_CACHE=1
RUN uv pip install --compile-bytecode -r pyproject.toml --extra runtime --extra otel -c constraints.txt
COPY crds crds
COPY operator operator
COPY runtime runtime
RUN uv pip install --compile-bytecode --no-deps --build-constraints constraints.txt .

FROM python:3.11-slim
# Triton compiles the launcher of each kernel with a C compiler when the kernel is first used.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/kvasir /opt/kvasir
ENV PATH=/opt/kvasir/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility TRITON_CACHE_DIR=/tmp/triton
# A number, so that runAsNonRoot can be checked without reading the image's passwd file.
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["/opt/kvasir/bin/kvasir", "serve"]
