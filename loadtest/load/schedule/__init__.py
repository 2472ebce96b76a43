"""Which request comes when, and how long it is: scenarios, arrivals, lengths."""
