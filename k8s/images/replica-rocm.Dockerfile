# syntax=docker/dockerfile:1.7
# A recipe: Ray's head and workers with vLLM on AMD GPUs. The project neither builds nor publishes it. From the
# repository's root, on amd64, with the index that vLLM names for its release and ROCm:
#   docker build -f k8s/images/replica-rocm.Dockerfile --build-arg VLLM_INDEX=https://wheels.vllm.ai/rocm/0.32.0/rocm723 \
#     --build-arg ROCM_IMAGE=rocm/dev-ubuntu-24.04:7.2.3-complete@sha256:... -t penstock-replica-rocm .
# vLLM's wheels for ROCm are for Python 3.12 and glibc 2.39 alone, and bring their own PyTorch.

ARG ROCM_IMAGE=rocm/dev-ubuntu-24.04:7.2.3-complete

FROM ${ROCM_IMAGE} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3.12 python3.12-venv python3.12-dev bash wget gcc g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*

FROM base AS environment
ARG VLLM_INDEX=https://wheels.vllm.ai/rocm/0.32.0/rocm723
WORKDIR /source
RUN python3.12 -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir "build==1.3.0" "hatchling==1.27.0" "uv==0.13.9"
COPY pyproject.toml README.md LICENSE ./
COPY cluster cluster
COPY deployments deployments
COPY loadtest loadtest
COPY router router
COPY proto proto
# uv takes what the first index has from there alone, so vLLM and PyTorch are those for ROCm. The last line fails if not.
RUN /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels proto \
    && /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels \
    && python3.12 -m venv /opt/penstock \
    && VIRTUAL_ENV=/opt/penstock /opt/build/bin/uv pip install --no-cache --compile-bytecode --extra-index-url ${VLLM_INDEX} /wheels/penstock_client-*.whl \
         "$(ls /wheels/penstock_llm-*.whl)[gpu,objects]" \
    && /opt/penstock/bin/python -c "import torch, deployments.app; assert torch.version.hip, torch.__version__"

FROM base
LABEL org.opencontainers.image.source=https://github.com/penstock/penstock \
      org.opencontainers.image.licenses=Apache-2.0
RUN groupadd --gid 10001 penstock \
    && useradd --uid 10001 --gid 10001 --home-dir /home/penstock --create-home --shell /bin/bash penstock
COPY --from=environment /opt/penstock /opt/penstock
ENV ROCM_PATH=/opt/rocm PATH=/opt/penstock/bin:/opt/rocm/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /home/penstock
CMD ["ray", "--version"]
