"""What a server holds, as a table."""

from rich.table import Table

from nunatak_client import MemoryReport


def memory_table(report: MemoryReport) -> Table:
    """One line for each task version in memory."""
    table = Table("version", "method", "bytes", "pinned")
    for task in report.tasks:
        pinned = "yes" if task.pinned else ""
        table.add_row(f"{task.task}/{task.version}", task.method, f"{task.bytes}", pinned)
    return table


def tiers_line(report: MemoryReport) -> str:
    """How much of the budgets is used, in one sentence."""
    device, host = report.tiers.device, report.tiers.host
    return (
        f"{device.bytes} of {device.budget_bytes} bytes on the device, "
        f"{device.pinned_bytes} of them pinned; {host.bytes} of {host.budget_bytes} in host memory"
    )
