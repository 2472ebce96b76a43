"""The slow loop's host: looks at pools, decides with `cluster.control.slow`, and has replicas started and stopped."""
