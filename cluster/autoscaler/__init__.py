"""The autoscaler: it observes pools, decides with `cluster.control.replica_policy`, and starts and stops replicas."""
