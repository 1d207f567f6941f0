"""Training of task versions: data, recipes, the loop and publishing."""
