"""What other rules would have made of a recorded load. Pure: no clock, no I/O; chance only from a seed."""
