"""One module per command. What is heavy is imported in the function that needs it."""
