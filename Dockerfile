# The same file builds linux/amd64 and linux/arm64: every dependency in the lock has a wheel for both.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    SOURCE_DATE_EPOCH=315532800
WORKDIR /src
COPY . .
# Two environments: what makes the wheel stays in this stage, what runs it is copied to the next. The second has no pip.
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --quiet --require-hashes --only-binary :all: --requirement requirements/build.txt \
 && /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . \
 && python -m venv --without-pip /opt/vllm-sidecar \
 && /opt/build/bin/pip --python /opt/vllm-sidecar/bin/python install --quiet --no-compile --require-hashes \
      --only-binary :all: --requirement requirements/runtime.txt \
 && /opt/build/bin/pip --python /opt/vllm-sidecar/bin/python install --quiet --no-compile --no-deps --no-index dist/*.whl \
 && /opt/vllm-sidecar/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/vllm-sidecar/lib

FROM ${PYTHON_IMAGE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="vLLM Sidecar" \
      org.opencontainers.image.description="Prometheus exporter and alerting sidecar for vLLM engines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/vllm-sidecar /opt/vllm-sidecar
# Nothing is written at run time, so a read-only root file system and a user without a home are enough.
ENV PATH=/opt/vllm-sidecar/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 10077
ENTRYPOINT ["vllm-sidecar"]
CMD ["--web.listen-address=:10077"]
