"""The file that `penstock config init` writes."""

from __future__ import annotations

TEXT = """\
# Settings of a Penstock cluster. Start it with: penstock up --settings cluster.toml
#
# Lines with a value are the defaults, or examples; take the # away from those that you need. All settings, with units,
# ranges and defaults, are in cluster/reference/settings.md. `penstock config check` finds mistakes, and
# `penstock config show` prints everything that is in force.

[router]
# Address on which routers listen. Other machines reach 0.0.0.0; clients then need keys, or auth.anonymous = true.
host = "127.0.0.1"
port = 50051
# Router processes that share the port; one per core at most.
processes = 1

# A pool is a model with its own queue and replicas. Its name, here "demo", is the model's name in requests.
[pools.demo]
# A local folder, a name on the Hugging Face hub, the URL of an object store (s3://, gs://, az://), or "demo" for the
# tiny model that comes with Penstock.
model = "demo"
# "vllm", or "sim" for a simulated engine without a GPU and without a model's weights.
engine = "vllm"
replicas = 1
# GPUs of one machine that share every layer of a replica's model.
tensor_parallel_size = 1

# The engine of the pool.
[pools.demo.vllm]
# Largest number of sequences that run at once.
max_num_seqs = 256
# Context length in tokens; less needs less memory. Without it: the model's own.
# max_model_len = 2048
# quantization = "fp8"

# What the pool promises. A replica's batch stays as small as the time between tokens needs it.
# [pools.demo.slo.interactive]
# itl_p95_s = 0.05
# ttft_p99_s = 2.0

# Let the number of replicas follow the load.
# [pools.demo.autoscale]
# mode = "active"
# min_replicas = 1
# max_replicas = 8

# Who may call. `penstock keys new --file keys.toml --tenant acme` makes keys.
# [auth]
# keys_file = "keys.toml"

# Encrypt the API. Files are PEM.
# [router.tls]
# certificate_file = "router.pem"
# private_key_file = "router.key"

# A Redis of your own, 6.2 or newer. Without it, `penstock up` starts one that keeps its data in cluster.state_dir.
# [redis]
# url = "redis://127.0.0.1:6379"

# A larger share for one tenant, and what it may use.
# [tenants.acme]
# weight = 2

# Folder of Redis' data, of the cluster's secret and of logs. One cluster per folder.
# [cluster]
# state_dir = "~/.penstock"
"""
