# The runtime for CPUs. No Kubernetes client.
# The pins name the CUDA build of torch, which computes on a CPU as well but is large. --build-arg TORCH_INDEX_URL=… takes the
# pinned version from an index of CPU builds instead; its hash is not in the pins, so name only an index that you trust.
FROM python:3.11-slim AS build
# Compiles the CPU kernels; the image that is served from carries only the result.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE hatch_build.py ./
# uv comes from the pins, checked by hash; it checks the hashes of everything else.
RUN awk '/^[^ ]/ {keep = /^uv==/} keep' constraints.txt | pip install --no-cache-dir --require-hashes -r /dev/stdin \
 && python -m venv --without-pip /opt/kvasir
ENV VIRTUAL_ENV=/opt/kvasir UV_NO_CACHE=1
ARG TORCH_INDEX_URL=
RUN test -z "$TORCH_INDEX_URL" || uv pip install --index-url "$TORCH_INDEX_URL" "$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)"
RUN uv pip install --compile-bytecode -r pyproject.toml --extra runtime --extra otel -c constraints.txt
COPY crds crds
COPY operator operator
COPY runtime runtime
RUN uv pip install --compile-bytecode --no-deps --build-constraints constraints.txt .

FROM python:3.11-slim
COPY --from=build /opt/kvasir /opt/kvasir
ENV PATH=/opt/kvasir/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
# A number, so that runAsNonRoot can be checked without reading the image's passwd file.
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["/opt/kvasir/bin/kvasir", "serve"]
