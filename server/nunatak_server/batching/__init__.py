"""From rows that wait to the next batch: a pure planner, and the hand-over between threads."""
