"""The training loop: epochs of steps over the tensors of one task, which can be resumed."""
