"""Files of inputs: their rows, and the run of `predict-file`, which a kill cannot break."""
