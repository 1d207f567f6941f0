"""Logs that tell where the code failed, and nothing of what callers sent.

The message of an exception that nobody foresaw may quote its input; the type and the lines of code
find the fault as well.
"""

import logging
import traceback


class WithoutMessages(logging.Filter):
    """Replaces the exceptions of records by their types and places."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without the messages of exceptions."""
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            record.exc_text = "".join(traceback.format_tb(trace)) + kind.__name__
            record.exc_info = None
        return True
