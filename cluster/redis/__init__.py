"""Redis as a transport: URLs, connections, script calls in pipelines. Knows nothing of what is stored."""
