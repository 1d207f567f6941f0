"""Routes in the protocols of other servers."""
