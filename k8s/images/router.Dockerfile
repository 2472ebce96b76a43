# syntax=docker/dockerfile:1.7
# Routers, the autoscaler and the command line: no Ray, no PyTorch. Build from the repository's root:
#   docker build -f k8s/images/router.Dockerfile -t penstock-router .

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
COPY requirements/router.txt /tmp/router.txt
COPY --from=wheel /wheels /wheels
# The pinned packages, without any others, and Penstock from its wheel.
RUN python -m venv /opt/penstock \
    && /opt/penstock/bin/pip install --no-cache-dir --no-deps -r /tmp/router.txt \
    && /opt/penstock/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/penstock/bin/pip uninstall --yes pip \
    && /opt/penstock/bin/python -c "import router.__main__, cluster.cli.main"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.source=https://github.com/penstock/penstock \
      org.opencontainers.image.licenses=Apache-2.0
RUN groupadd --gid 10001 penstock \
    && useradd --uid 10001 --gid 10001 --home-dir /home/penstock --create-home --shell /usr/sbin/nologin penstock
COPY --from=environment /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /home/penstock
EXPOSE 50051 9090
CMD ["python", "-m", "router"]
