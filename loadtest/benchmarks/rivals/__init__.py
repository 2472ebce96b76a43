"""Another planner beside Penstock's on the same measured points."""
