"""The report: measured results as one HTML page, Markdown, JSON and plots."""

from nunatak_loadtest.page.writing import write_report

__all__ = ["write_report"]
