"""Code that all commands of `penstock` share: registration, types of flags, and printing."""
