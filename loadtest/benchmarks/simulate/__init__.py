"""How fast the simulator is, and how well it predicts a recorded run of a real engine."""
