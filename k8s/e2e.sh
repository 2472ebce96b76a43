#!/usr/bin/env bash
# Installs the chart on kubectl's current cluster, runs `helm test`, and updates and scales the release under load.
# Any failed request fails the script. Needs KubeRay, the images as :ci, and `pip install .` for the client.
set -euo pipefail
cd "$(dirname "$0")"
ENGINE=${ENGINE:-sim}
N=penstock

kubectl create namespace $N --dry-run=client -o yaml | kubectl apply -f -
kubectl label namespace $N pod-security.kubernetes.io/enforce=restricted --overwrite
values=(
  --namespace $N --values chart/ci/sim-values.yaml
  --set images.router.tag=ci --set images.replica.tag=ci
  --set images.router.pullPolicy=Never --set images.replica.pullPolicy=Never
  --set autoscaler.enabled=true --set pools.demo.settings.autoscale.mode=advisory
  --set pools.demo.settings.autoscale.max_replicas=2 --set secrets.generate=true --set pools.demo.settings.engine="$ENGINE"
)
if [ "$ENGINE" = vllm ]; then
  values+=(--set pools.demo.settings.replicas=1 --set pools.demo.workers.min=1
           --set pools.demo.workers.resources.requests.memory=3Gi --set pools.demo.workers.resources.limits.memory=5Gi)
fi
helm upgrade --install $N chart "${values[@]}"
kubectl -n $N rollout status deployment/penstock-router --timeout=5m
kubectl -n $N rollout status deployment/penstock-autoscaler --timeout=5m
kubectl -n $N wait rayservice/penstock --for=condition=Ready --timeout=20m
helm -n $N test $N --timeout 5m

# A client inside the cluster that sends one request after the other. The first failure ends the pod.
kubectl -n $N run load --image=ghcr.io/penstock/penstock-router:ci --image-pull-policy=Never --restart=Never \
  --labels=app.kubernetes.io/instance=$N,app.kubernetes.io/component=test,app.kubernetes.io/part-of=penstock \
  --overrides='{"spec": {"securityContext": {"runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [{"name": "load", "image": "ghcr.io/penstock/penstock-router:ci", "imagePullPolicy": "Never",
    "command": ["sh", "-c", "while penstock generate --target dns:///penstock-router-headless:50051 --model demo --max-tokens 64 --timeout 60 again; do :; done; exit 1"],
    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}'
kubectl -n $N wait pod/load --for=condition=Ready --timeout=2m
running() { [ "$(kubectl -n $N get pod load -o jsonpath='{.status.phase}')" = Running ] || { kubectl -n $N logs load --tail=40; exit 1; }; }

kubectl -n $N rollout restart deployment/penstock-router
kubectl -n $N rollout status deployment/penstock-router --timeout=10m
running
kubectl -n $N scale deployment/penstock-router --replicas=1
kubectl -n $N rollout status deployment/penstock-router --timeout=5m
running
# A setting of replicas: KubeRay passes the new Serve config to the running cluster, which replaces replicas.
helm upgrade $N chart "${values[@]}" --set settings.queue.lease_s=5
sleep 30
kubectl -n $N wait rayservice/penstock --for=condition=Ready --timeout=20m
running
kubectl -n $N delete pod load --wait=false
echo "ok: $ENGINE"
