"""Tools around a cluster: load tests, profiles, the simulator, the planner, and benchmarks."""

import os

if os.environ.get("PENSTOCK_COMPILED_SIMULATOR"):
    # Before the first module of the simulator is imported.
    from loadtest.compiled.finder import use_compiled

    use_compiled()
