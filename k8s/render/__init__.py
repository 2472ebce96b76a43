"""Generated files under k8s/ (values schema, dashboards, Kustomize) and the pins of the router's image."""
