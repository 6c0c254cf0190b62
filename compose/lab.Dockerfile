# What the image leaves out: the simulated engine and the load generator. For a desk, not for a pod.
FROM docker.io/library/python:3.13-slim
WORKDIR /src
COPY . .
RUN python -m venv /opt/lab \
 && /opt/lab/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt --requirement requirements/lab.txt \
 && /opt/lab/bin/pip install --no-cache-dir --no-deps --no-build-isolation .
USER 65532:65532
ENTRYPOINT ["/opt/lab/bin/vllm-sidecar"]
