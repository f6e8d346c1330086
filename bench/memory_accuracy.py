"""How far the memory estimate is from published measurements: a table, and the worst rows.

    python bench/memory_accuracy.py [CSV ...] [--json FILE]

Rows are read from bench/data/memory_measured.csv unless tables are named. Every row with `usable` 1 is
predicted, or listed with the reason why it cannot be.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "bench" / "data" / "memory_measured.csv"


def main() -> None:
    """Print the table, write the JSON."""
    sys.path.insert(0, str(ROOT))
    from bench.memory_model.accuracy import as_json, judge, report
    from bench.memory_model.rows import read_rows

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, default=[DEFAULT])
    parser.add_argument("--json", type=Path, help="write predictions here")
    wish = parser.parse_args()
    judged, left_out = judge(read_rows(wish.tables))
    if wish.json:
        wish.json.write_text(as_json(judged, left_out) + "\n", encoding="utf-8")
    for line in report(judged, left_out):
        print(line)


if __name__ == "__main__":
    main()
