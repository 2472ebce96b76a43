"""Links to replicas: one stream per replica. They know attempts, and nothing of choices."""
