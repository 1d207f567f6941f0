"""The queue of rows: its limits, fair turns, and the plan of the next batch."""
