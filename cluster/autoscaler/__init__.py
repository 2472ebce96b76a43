"""The autoscaler: it looks at pools, decides with `cluster.control.replica_policy`, and starts and stops replicas."""
