"""Writes the scored tickets into one CSV file per queue, angry customers first."""

import csv
import sys
from collections import defaultdict
from pathlib import Path

LEAST_SCORE = 0.5

scored, folder = Path(sys.argv[1]), Path(sys.argv[2])
queues = defaultdict[str, list[dict[str, str]]](list)
with scored.open(encoding="utf-8", newline="") as file:
    for ticket in csv.DictReader(file):
        is_sure = float(ticket["queue_score"]) >= LEAST_SCORE
        queues[ticket["queue"] if is_sure else "unsure"].append(ticket)

folder.mkdir(parents=True, exist_ok=True)
for queue, tickets in sorted(queues.items()):
    tickets.sort(key=lambda it: (it["tone"] != "frustrated", -float(it["tone_score"])))
    with (folder / f"{queue}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, tickets[0].keys())
        writer.writeheader()
        writer.writerows(tickets)
    print(f"{queue}: {len(tickets)} tickets, first {tickets[0]['id']}")
