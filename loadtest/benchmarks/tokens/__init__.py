"""The cost of a token from the engine to a client: in process, over vLLM's HTTP server, over Penstock.

One run starts the three paths one after another with the same engine settings and drives each with the same load. The
figures of one run compare; absolute figures of shared machines do not last.
"""
