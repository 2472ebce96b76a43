"""What every command of `penstock` shares: its registration, types of flags, and how it prints."""
