"""What an operator sees of the server beside its metrics: records, logs and traces."""
