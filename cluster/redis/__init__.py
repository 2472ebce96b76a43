"""Redis as a transport: URLs, connections, script calls in pipelines. It does not depend on what is stored."""
