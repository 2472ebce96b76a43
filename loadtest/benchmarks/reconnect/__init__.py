"""The effect on the remaining router when all clients of a dead router reconnect at once."""
