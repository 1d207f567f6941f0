"""Operations on tensors, each in the form that a device runs best; no task, no plan."""
