"""Commands of servers: to run them, and to look at them from outside."""
