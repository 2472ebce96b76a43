"""The router's ends of its links to replicas. They know nothing of choices."""
