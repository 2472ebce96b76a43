# syntax=docker/dockerfile:1.7
# Ray's head and workers with vLLM on NVIDIA GPUs. Build from the repository's root:
#   docker build -f k8s/images/replica-cuda.Dockerfile -t penstock-replica-cuda .
# PyTorch's wheels bring CUDA's libraries. The base brings nvcc, with which kernels are compiled at the start of an engine.

ARG CUDA_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:7d2f6a8c2071d911524f95061a0db363e24d27aa51ec831fcccf9e76eb72bc92

FROM ${CUDA_IMAGE} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3.12 python3.12-venv python3.12-dev bash wget gcc g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*

FROM base AS environment
WORKDIR /source
RUN python3.12 -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir "build==1.3.0" "hatchling==1.27.0" "uv==0.13.9"
COPY pyproject.toml README.md LICENSE ./
COPY cluster cluster
COPY deployments deployments
COPY loadtest loadtest
COPY router router
COPY proto proto
COPY requirements/replica-cuda.txt /tmp/run.txt
# The pinned packages, without any others, and Penstock from its wheel.
RUN /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels proto \
    && /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels \
    && python3.12 -m venv /opt/penstock \
    && VIRTUAL_ENV=/opt/penstock /opt/build/bin/uv pip install --no-cache --compile-bytecode --torch-backend=cu130 --no-deps -r /tmp/run.txt \
    && VIRTUAL_ENV=/opt/penstock /opt/build/bin/uv pip install --no-cache --compile-bytecode --no-deps /wheels/*.whl \
    && /opt/penstock/bin/python -c "import deployments.app"

FROM base
LABEL org.opencontainers.image.source=https://github.com/penstock/penstock \
      org.opencontainers.image.licenses=Apache-2.0
RUN groupadd --gid 10001 penstock \
    && useradd --uid 10001 --gid 10001 --home-dir /home/penstock --create-home --shell /bin/bash penstock
COPY --from=environment /opt/penstock /opt/penstock
ENV CUDA_HOME=/usr/local/cuda PATH=/opt/penstock/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /home/penstock
CMD ["ray", "--version"]
