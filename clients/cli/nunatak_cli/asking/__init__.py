"""Commands that ask tasks: about one text, about a file, about a corpus."""
