"""From logits to the answers that callers see, by the kind of the head."""
