"""Task versions in memory: leases, loads, evictions and budgets."""
