"""Roll-outs: a pool's model or engine settings change one replica at a time, and go back if the new ones are worse."""
