"""Writes the scored tickets into one CSV file per queue, angry customers first."""

import argparse
import csv
from collections import defaultdict
from pathlib import Path

LEAST_SCORE = 0.5

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("scored", type=Path, help="CSV file that `nunatak predict-file` wrote")
parser.add_argument("folder", type=Path, help="for the files of the queues")
asked = parser.parse_args()
queues = defaultdict[str, list[dict[str, str]]](list)
with asked.scored.open(encoding="utf-8", newline="") as file:
    reader = csv.DictReader(file)
    missing = {"id", "queue", "queue_score", "tone", "tone_score"} - {*(reader.fieldnames or ())}
    if missing:
        parser.error(f"{asked.scored} lacks {', '.join(sorted(missing))}: score the tickets first")
    for ticket in reader:
        is_sure = float(ticket["queue_score"]) >= LEAST_SCORE
        queues[ticket["queue"] if is_sure else "unsure"].append(ticket)

asked.folder.mkdir(parents=True, exist_ok=True)
for queue, tickets in sorted(queues.items()):
    tickets.sort(key=lambda it: (it["tone"] != "frustrated", -float(it["tone_score"])))
    with (asked.folder / f"{queue}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, tickets[0].keys())
        writer.writeheader()
        writer.writerows(tickets)
    print(f"{queue}: {len(tickets)} tickets, first {tickets[0]['id']}")
