"""The times and lengths of requests: scenarios, arrivals, lengths."""
