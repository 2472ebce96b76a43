"""Links from the replica's end: who may connect, commands in, frames out."""
