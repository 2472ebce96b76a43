"""Redis in this process, for simulations and tests: the scripts and the classes that call them are production's."""
