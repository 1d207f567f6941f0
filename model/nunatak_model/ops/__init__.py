"""Operations on tensors, each in the fastest form for a device; no task, no plan."""
