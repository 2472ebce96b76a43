#!/usr/bin/env bash
# The life of a release on kubectl's current cluster, under load: install, `helm test`, rolling update, upgrades with
# server-side apply, an upgrade that fails and goes back, rollbacks, a pool that is appended and retired, a second Ray
# cluster, a drained node, uninstall.
# Any failed request fails the script. Needs Helm 4, KubeRay, the nodes of kind.yaml, the images as :ci, and
# `pip install .` for the client.
set -euo pipefail
cd "$(dirname "$0")"
ENGINE=${ENGINE:-sim}
N=penstock

say() { printf '\n== %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
wait_for() { # TEXT COMMAND...: until the command prints the text, for at most 30 minutes
  local wanted=$1
  shift
  for _ in $(seq 360); do
    [ "$("$@")" = "$wanted" ] && return
    sleep 5
  done
  fail "$*: still not '$wanted'"
}

case "$(helm version --template '{{.Version}}')" in v4.*) ;; *) fail "needs Helm 4" ;; esac
kubectl create namespace $N --dry-run=client -o yaml | kubectl apply -f -
kubectl label namespace $N pod-security.kubernetes.io/enforce=restricted --overwrite
values=(
  --namespace "$N" --values chart/ci/sim-values.yaml
  --set images.router.tag=ci --set images.replica.tag=ci
  --set images.router.pullPolicy=Never --set images.replica.pullPolicy=Never
  --set autoscaler.enabled=true --set pools.demo.settings.autoscale.mode=advisory
  --set pools.demo.settings.autoscale.max_replicas=2 --set secrets.generate=true --set "pools.demo.settings.engine=$ENGINE"
  # Volumes of kind stay on their node, and a drained head would restart all replicas.
  --set redis.pod.nodeSelector.role=state --set ray.head.pod.nodeSelector.role=state
)
if [ "$ENGINE" = vllm ]; then
  values+=(--set pools.demo.settings.replicas=1 --set pools.demo.workers.min=1
           --set pools.demo.workers.resources.requests.memory=3Gi --set pools.demo.workers.resources.limits.memory=5Gi)
fi
upgrade() { helm upgrade $N chart "${values[@]}" --server-side=true "$@"; }
ready() {
  kubectl -n $N rollout status deployment/penstock-router --timeout=10m
  kubectl -n $N wait rayservice/penstock --for=condition=Ready --timeout=30m
}
clusters() { kubectl -n $N get raycluster -o name | wc -l; }
left() {
  kubectl -n $N get pod,service,deployment,statefulset,configmap,networkpolicy,poddisruptionbudget,role,rolebinding,serviceaccount \
    -l app.kubernetes.io/instance=$N -o name
}
lease() { kubectl -n $N get configmap penstock-settings -o jsonpath='{.data.settings\.toml}' | grep -c 'lease_s = 5$' || true; }

say install
upgrade --install
ready
kubectl -n $N rollout status deployment/penstock-autoscaler --timeout=5m
helm -n $N test $N --timeout 5m

say load
# A client inside the cluster that sends one request after the other. The first failure ends the pod.
kubectl -n $N run load --image=ghcr.io/penstock/penstock-router:ci --image-pull-policy=Never --restart=Never \
  --labels=app.kubernetes.io/instance=$N,app.kubernetes.io/component=test,app.kubernetes.io/part-of=penstock \
  --overrides='{"spec": {"nodeSelector": {"role": "state"},
    "securityContext": {"runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [{"name": "load", "image": "ghcr.io/penstock/penstock-router:ci", "imagePullPolicy": "Never",
    "command": ["sh", "-c", "while penstock generate --target dns:///penstock-router-headless:50051 --model demo --max-tokens 64 --timeout 600 again; do :; done; exit 1"],
    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}'
kubectl -n $N wait pod/load --for=condition=Ready --timeout=2m
running() { [ "$(kubectl -n $N get pod load -o jsonpath='{.status.phase}')" = Running ] || { kubectl -n $N logs load --tail=40; exit 1; }; }

say "routers roll, and are scaled by kubectl"
kubectl -n $N rollout restart deployment/penstock-router
ready
kubectl -n $N scale deployment/penstock-router --replicas=1
ready
running

say "an upgrade fights with nobody: a setting of replicas, in place"
# kubectl owns the number now. The same number in the values conflicts with nothing.
values+=(--set router.replicas=1)
upgrade --set settings.queue.lease_s=5
sleep 30
ready
[ "$(clusters)" = 1 ] || fail "a setting made a second Ray cluster"
[ "$(lease)" = 1 ] || fail "the setting did not arrive"
running

say "an upgrade that the server refuses goes back by itself"
if upgrade --set settings.queue.lease_s=7 --set redis.storage=16Gi --rollback-on-failure --timeout 30m; then
  fail "another size of a volume was taken"
fi
[ "$(helm -n $N status $N --output json | grep -o '"status":"[a-z-]*"')" = '"status":"deployed"' ] || fail "not deployed"
[ "$(lease)" = 1 ] || fail "the upgrade that failed left a setting behind"
running

say "rollback to the first revision, whose secrets stay as they are"
key=$(kubectl -n $N get secret penstock-cluster -o jsonpath='{.data}')
helm -n $N rollback $N 1 --force-conflicts --timeout 30m
sleep 30
ready
[ "$(lease)" = 0 ] || fail "the first revision is not back"
[ "$key" = "$(kubectl -n $N get secret penstock-cluster -o jsonpath='{.data}')" ] || fail "a secret has changed"
running

say "a pool that is appended comes into the running Ray cluster, and one that is retired leaves it"
next='{"device":"cpu","settings":{"model":"demo","engine":"sim","replicas":1},"workers":{"order":1,"min":0,"max":2,"resources":{"requests":{"cpu":"250m","memory":"1Gi"},"limits":{"cpu":"1","memory":"2Gi"}}}}'
of_next() { kubectl -n $N get pod -l penstock.io/pool=next -o name | wc -l; }
upgrade --set-json "pools.next=$next"
wait_for 1 of_next
kubectl -n $N wait pod -l penstock.io/pool=next --for=condition=Ready --timeout=30m
ready
[ "$(clusters)" = 1 ] || fail "an appended pool made a second Ray cluster"
upgrade --set-json "pools.next=$next" --set pools.next.retired=true
wait_for 0 of_next
ready
[ "$(clusters)" = 1 ] || fail "a retired pool made a second Ray cluster"
running

say "a changed pod template: a second Ray cluster takes over, and the first goes"
upgrade --set pods.annotations.e2e=second --set ray.clusterDeletionDelaySeconds=120
wait_for 2 clusters
wait_for 1 clusters
ready
running

say "a node drain ends, and no request fails"
node=$(kubectl get nodes -l role=drained -o jsonpath='{.items[0].metadata.name}')
kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout=15m
ready
running
kubectl uncordon "$node"

say "uninstall in order: Ray first, while its operator and its Redis are there"
kubectl -n $N delete pod load --wait=true
kubectl -n $N delete rayservice penstock --wait=true --timeout=10m
wait_for 0 clusters
helm -n $N uninstall $N --wait --timeout 10m
wait_for "" left
kubectl -n $N get secret/penstock-cluster secret/penstock-ray-token > /dev/null || fail "secrets are gone"
kubectl delete namespace $N --wait=true --timeout=5m
echo "ok: $ENGINE"
