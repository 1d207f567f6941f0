"""Records the README's commands as a moving picture: `python -m release.recording`.

The commands run as they stand in the README, in an empty folder, and the picture plays what they
print in twenty seconds. A command's share of that time grows with the time that it took. Only the
port of the server is another one. Of a long output the picture has the first and last lines.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "first-hour.svg"
PROGRAM: Final = Path(sys.executable).with_name("nunatak")
READY: Final = "Nunatak is ready on "
ADDRESS: Final = "http://127.0.0.1:8080"
SECONDS, LAST, LEAST = 20.0, 3.0, 1.2
"""Of the picture; with its last lines; least for a command."""
FIRST_LINES, LAST_LINES = 8, 3
"""Lines that the picture has of a long output."""
GOES_ON: Final = re.compile(r"^\S+( \(\w+\))?: [\d,]+ of [\d,]+ \w+, ")
"""Lines about work that goes on, which are many on a busy machine; the picture has none."""
COLUMNS, ROWS = 122, 24
FONT, LINE, EDGE = 12, 17, 14
KEPT_SPACE: Final = "\N{NO-BREAK SPACE}"
"""Browsers join other spaces."""
STYLE: Final = """
text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1f2328}
.c{fill:#0550ae;font-weight:bold}rect{fill:#f6f8fa;stroke:#d1d9e0}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.c{fill:#79c0ff}rect{fill:#0d1117;stroke:#3d444d}}
.t,.s{animation:%gs step-end infinite}@media(prefers-reduced-motion:reduce){.t,.s{animation:none}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A command of the README, and the lines that it printed, each with its second."""

    command: str
    lines: Sequence[tuple[float, str]]
    seconds: float


def commands(readme: str) -> list[str]:
    """Return the README's commands of Nunatak, in its order."""
    blocks = re.findall(r"```sh\n(.*?)```", readme, flags=re.DOTALL)
    lines = (line.partition("  #")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("nunatak ")]


def record(wanted: Sequence[str], folder: Path) -> Iterator[Recorded]:
    """Run the commands in a folder; the server runs until the last of them has ended."""
    environment = {
        **os.environ,
        **{f"XDG_{it}_HOME": str(folder / it.lower()) for it in ("DATA", "CACHE")},
        "COLUMNS": str(COLUMNS),
    }
    # The log of the server is for its operator; progress is for those who wait.
    merged = subprocess.STDOUT
    server, url = None, ADDRESS
    try:
        for command in wanted:
            is_server = command.startswith("nunatak serve ")
            words = shlex.split(command.replace(ADDRESS, url).replace("--port 8080", "--port 0"))
            started, lines = time.monotonic(), list[tuple[float, str]]()
            process = subprocess.Popen(  # noqa: S603 - the README's own commands; no shell
                [PROGRAM, *words[1:]], cwd=folder, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if is_server else merged,
            )  # fmt: skip
            server = process if is_server else server
            for line in process.stdout or ():
                if is_server and READY in line:
                    url = line.partition(READY)[2].strip()
                lines.append((time.monotonic() - started, line.rstrip().replace(url, ADDRESS)))
                if READY in line:
                    break
            if not is_server and process.wait():
                raise SystemExit("\n".join([command, *(it for _, it in lines)]))
            yield Recorded(command=command, lines=lines, seconds=time.monotonic() - started)
    finally:
        if server is not None:
            server.terminate()
            server.communicate()


def timed(recorded: Sequence[Recorded]) -> Iterator[tuple[float, str, str]]:
    """Yield each line of the picture, with its second there and its class."""
    whole = sum(it.seconds for it in recorded)
    free = SECONDS - LAST - LEAST * len(recorded)
    begun = 0.0
    for one in recorded:
        length = LEAST + free * one.seconds / whole
        yield begun, f"$ {one.command}", "t c"
        for at, text in shortened(one.lines):
            yield begun + length * at / one.seconds, text, "t"
        begun += length


def shortened(lines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the lines of an output without the middle of a long one."""
    lines = [it for it in lines if not GOES_ON.match(it[1])]
    if len(lines) <= FIRST_LINES + LAST_LINES + 1:
        return lines
    left_out = (lines[-LAST_LINES][0], "...")
    return [*lines[:FIRST_LINES], left_out, *lines[-LAST_LINES:]]


def picture(lines: Sequence[tuple[float, str, str]]) -> str:
    """Return the picture: a column of lines that appear, and that moves up when it is full."""
    width, height = COLUMNS * FONT * 0.602 + 2 * EDGE, ROWS * LINE + 2 * EDGE
    frames, texts, moves = list[str](), list[str](), dict[str, int]()
    for number, (at, text, kind) in enumerate(lines):
        share = f"{100 * at / SECONDS:.2f}%"
        frames.append(f"@keyframes t{number}{{0%{{opacity:0}}{share},to{{opacity:1}}}}")
        moves[share] = min(0, (ROWS - number - 1) * LINE)
        place = f'x="{EDGE}" y="{EDGE + (number + 0.75) * LINE:g}"'
        shown = escape(text if len(text) <= COLUMNS else f"{text[: COLUMNS - 3]}...")
        shown = shown.replace(" ", KEPT_SPACE)
        name = f'style="animation-name:t{number}"'
        texts.append(f'<text class="{kind}" {place} {name}>{shown}</text>')
    scroll = "".join(f"{it}{{{_moved(by)}}}" for it, by in moves.items() if by)
    last = _moved(min(0, (ROWS - len(lines)) * LINE))
    style = STYLE % (FONT, SECONDS) + "\n".join(frames)
    style += f"\n@keyframes s{{0%{{{_moved(0)}}}{scroll}to{{{last}}}}}"
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{style}</style>",
            '<rect x=".5" y=".5" width="99.8%" height="99.8%" rx="6"/>',
            f'<svg y="{EDGE / 2:g}" height="{height - EDGE}">',
            f'<g class="s" style="animation-name:s;{last}">',
            *texts,
            "</g></svg></svg>\n",
        ]
    )


def _moved(by: int) -> str:
    return f"transform:translateY({by}px)"


def main() -> None:
    """Record the README and write the picture."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        recorded = list[Recorded]()
        for one in record(commands(readme), Path(folder)):
            recorded.append(one)
            print(f"{one.seconds:6.1f} s  {one.command}", flush=True)
    PICTURE.write_text(picture([*timed(recorded)]), encoding="utf-8")


if __name__ == "__main__":
    main()
