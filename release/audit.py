"""Refuses pinned versions with a known vulnerability: `python -m release.audit`.

It asks the OSV database by pip-audit. Every finding is refused, whatever its severity, unless
`ACCEPTED` names it with a reason. What could not be asked is refused too.
"""

import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).parents[1] / "constraints.txt"
SERVICE = "https://api.osv.dev/v1/query"
ACCEPTED: dict[str, str] = {}
"""Identifiers of advisories that do no harm here, with the reason."""
SKIPPED = "WARNING:pip_audit._service"
"""How pip-audit begins a line about an advisory that it has left out."""


def audit(pins: Path = PINS, service: str = SERVICE) -> None:
    """Return if no pinned version has a known vulnerability.

    Raises:
        SystemExit: there is one, or the database could not be asked about every version.
    """
    accepted = [it for name in ACCEPTED for it in ("--ignore-vuln", name)]
    options = ("--no-deps", "--disable-pip", "--strict", "--progress-spinner", "off", *accepted)
    place = ("--vulnerability-service", "osv", "--osv-url", service, "--requirement", str(pins))
    done = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-m", "pip_audit", *options, *place],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == 0 and SKIPPED not in done.stderr:
        return
    reason = "\n".join(done.stderr.strip().splitlines()[-5:])
    sys.exit(
        f"expected an answer without findings from {service} about every version in {pins.name}, "
        f"got:\n{reason}\nRaise the versions, or try again where the database can be reached."
    )


if __name__ == "__main__":
    audit()
