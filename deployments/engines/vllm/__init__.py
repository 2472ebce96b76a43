"""The vLLM engine. Only this package imports vllm, and only inside functions or in modules that the engine loads.

Pinned to vLLM 0.32. `internals/used.py` lists what we use of it; some of that is checked at start, and
`make vllm-check` compares all of it with another release.
"""
