# The operator: watches services, applies revisions, scales. No torch.
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS pins
WORKDIR /src
COPY constraints.txt pyproject.toml ./
# What the project depends on and no more: its version, its words and the settings of tools change more often than the
# layer of the libraries should.
RUN sed -i '/^\[project\.scripts\]/,$d; s/^version = .*/version = "0"/; /^description = /d' pyproject.toml && touch -d @0 constraints.txt pyproject.toml

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY --from=pins /src/constraints.txt /src/pyproject.toml ./
# uv comes from the pins, checked by hash; it checks the hashes of everything else.
RUN awk '/^[^ ]/ {keep = /^uv==/} keep' constraints.txt | pip install --no-cache-dir --require-hashes -r /dev/stdin \
 && python -m venv --without-pip /opt/kvasir
# What was downloaded is kept beside the layers, for the next build.
ENV VIRTUAL_ENV=/opt/kvasir UV_LINK_MODE=copy UV_CACHE_DIR=/var/cache/uv
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --compile-bytecode -r pyproject.toml --extra operator -c constraints.txt

# A stage and a layer of its own: the layer of the libraries stays the same while their pins do.
FROM build AS project
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY images/sbom.py images/
COPY crds crds
COPY operator operator
COPY runtime runtime
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --compile-bytecode --no-deps --build-constraints constraints.txt --target /opt/project . \
 && mv /opt/project/bin /opt/scripts \
 && python images/sbom.py kvasir-operator /opt/kvasir/lib/python3.11/site-packages /opt/project >/opt/sbom.cdx.json

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/kvasir /opt/kvasir
COPY --from=project /opt/sbom.cdx.json /opt/kvasir/sbom.cdx.json
COPY --from=project /opt/scripts /opt/kvasir/bin
COPY --from=project /opt/project /opt/kvasir/lib/python3.11/site-packages
ENV PATH=/opt/kvasir/bin:$PATH PYTHONUNBUFFERED=1
ARG PYTHON_IMAGE VERSION= REVISION=
LABEL org.opencontainers.image.title="kvasir-operator" org.opencontainers.image.description="Watches InferenceServices, applies revisions, scales" \
      org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.base.name="$PYTHON_IMAGE" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$REVISION"
# A number, so that runAsNonRoot can be checked without reading the image's passwd file.
USER 65532:65532
ENTRYPOINT ["/opt/kvasir/bin/kvasir", "operator"]
