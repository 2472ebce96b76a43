"""A cluster for the tests of an application: real routers and queue, simulated engines, no GPU and no Ray.

with running_cluster() as cluster:
    print(cluster.client.generate("demo", "What is a KV cache?", max_tokens=8).text)

With pytest, `penstock.testing.plugin` has fixtures. The cluster needs the server's distribution, `penstock-llm[sim]`,
which may be installed in another environment than the tests.
"""

from penstock.testing.cluster import COMMAND_VARIABLE, ClusterStartError, SimulatedCluster, running_cluster

__all__ = ["COMMAND_VARIABLE", "ClusterStartError", "SimulatedCluster", "running_cluster"]
