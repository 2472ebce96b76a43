"""Server-side apply without a server: who owns which field, and which apply conflicts.

`schema` reads types from Kubernetes' own schemas and from CustomResourceDefinitions. `fields` has the rules of
structured merge: what an object owns, how two differ, how they merge, what is taken away. `server` keeps objects with
their managers, and refuses in an API server's words. `helm` is Helm 4 on it, `controllers` are those who write back.

The rules are those of kubernetes-sigs/structured-merge-diff (merge/update.go, typed/), and the words those of
k8s.io/apimachinery (managedfields/internal/conflict.go). What a server does besides (admission, webhooks, conversion
between versions, the limit of managers) is left out.
"""
