"""From what is asked to what is answered: one request, free of HTTP."""
