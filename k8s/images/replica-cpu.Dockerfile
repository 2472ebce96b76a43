# syntax=docker/dockerfile:1.7
# Ray's head and workers with engines on the CPU: simulated ones, and vLLM's CPU build. From the repository's root:
#   docker build -f k8s/images/replica-cpu.Dockerfile -t penstock-replica-cpu .

ARG PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
RUN pip install --no-cache-dir "build==1.3.0" "hatchling==1.27.0"
COPY pyproject.toml README.md LICENSE ./
COPY cluster cluster
COPY deployments deployments
COPY loadtest loadtest
COPY router router
COPY proto proto
RUN python -m build --wheel --no-isolation --outdir /wheels proto \
    && python -m build --wheel --no-isolation --outdir /wheels

FROM ${PYTHON_IMAGE} AS environment
# PyTorch's CPU build has its own index. Empty where a folder with its wheel is in UV_FIND_LINKS.
ARG TORCH_BACKEND=--torch-backend=cpu
COPY requirements/replica-cpu.txt /tmp/run.txt
COPY --from=wheel /wheels /wheels
# The pinned packages, without any others, and Penstock from its wheel.
RUN pip install --no-cache-dir "uv==0.13.9" \
    && python -m venv /opt/penstock \
    && VIRTUAL_ENV=/opt/penstock uv pip install --no-cache --compile-bytecode ${TORCH_BACKEND} --no-deps -r /tmp/run.txt \
    && VIRTUAL_ENV=/opt/penstock uv pip install --no-cache --compile-bytecode --no-deps /wheels/*.whl \
    && /opt/penstock/bin/python -c "import deployments.app"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.source=https://github.com/penstock/penstock \
      org.opencontainers.image.licenses=Apache-2.0
# KubeRay starts Ray with bash, and its probes use wget; vLLM compiles with gcc and binds memory with libnuma.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bash wget gcc g++ libc6-dev libnuma1 libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 penstock \
    && useradd --uid 10001 --gid 10001 --home-dir /home/penstock --create-home --shell /bin/bash penstock
COPY --from=environment /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /home/penstock
CMD ["ray", "--version"]
