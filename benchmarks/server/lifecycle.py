"""Ends of servers: requests lost by SIGTERM, and wrong answers around SIGKILL.

Real processes serve a tiny random backbone. Each answer is compared with a forward of its task
alone. The scenarios of `tests/e2e/test_lifecycle.py` run many times.
"""

import tempfile
from pathlib import Path

from benchmarks.harness.recording import figures_parser, open_sheet
from doubles.lifecycles import (
    ANSWERED,
    kill_under_load,
    make_site,
    terminate_with_calls_in_flight,
)


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__)
    parser.add_argument("--terminations", type=int, default=10)
    parser.add_argument("--in-flight", type=int, default=200, help="requests at each of them")
    parser.add_argument("--kills", type=int, default=50)
    options, sheet = open_sheet(parser)
    with tempfile.TemporaryDirectory() as folder:
        site = make_site(Path(folder))
        ended = [
            terminate_with_calls_in_flight(site, options.in_flight)[0]
            for _ in range(options.terminations)
        ]
        killed = [kill_under_load(site, calls_before=200) for _ in range(options.kills)]
    lost = sum(options.in_flight - tally.statuses[ANSWERED] + tally.num_wrong for tally in ended)
    wrong = sum(tally.num_wrong for tally in killed)
    num_answers = sum(tally.statuses.total() for tally in killed)
    sent = options.in_flight * options.terminations
    for identifier, value, unit in (
        ("server.sigterm.lost", lost, f"of {sent} requests in flight"),
        ("server.kill.wrong", wrong, f"of {num_answers} answers around {options.kills} kills"),
    ):
        sheet.record(identifier, [value], unit=unit, goal="<= 0")


if __name__ == "__main__":
    main()
