"""Whether a request may wait, and for how long: demand, estimates, load shedding."""
