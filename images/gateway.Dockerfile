# The endpoint picker that stands beside Envoy. No torch. Envoy itself is an image of its own.
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE hatch_build.py ./
# uv comes from the pins, checked by hash; it checks the hashes of everything else.
RUN awk '/^[^ ]/ {keep = /^uv==/} keep' constraints.txt | pip install --no-cache-dir --require-hashes -r /dev/stdin \
 && python -m venv --without-pip /opt/kvasir
ENV VIRTUAL_ENV=/opt/kvasir UV_NO_CACHE=1
RUN uv pip install --compile-bytecode -r pyproject.toml --extra gateway -c constraints.txt
COPY crds crds
COPY operator operator
COPY runtime runtime
RUN uv pip install --compile-bytecode --no-deps --build-constraints constraints.txt .

FROM python:3.11-slim
COPY --from=build /opt/kvasir /opt/kvasir
ENV PATH=/opt/kvasir/bin:$PATH PYTHONUNBUFFERED=1
# A number, so that runAsNonRoot can be checked without reading the image's passwd file.
USER 65532:65532
ENTRYPOINT ["/opt/kvasir/bin/kvasir", "gateway"]
