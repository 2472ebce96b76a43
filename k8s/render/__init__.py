"""The generator of files under k8s/ (values schema, dashboards, Kustomize) and of the router image's pins."""
