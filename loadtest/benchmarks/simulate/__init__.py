"""The speed of the simulator, and its prediction of a recorded run of a real engine."""
