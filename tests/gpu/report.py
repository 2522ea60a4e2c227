"""The table for people, and the record for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

SCHEMA = 1


def row(record: dict) -> str:
    """Formats a check's line (verdict, name, seconds, key figures) and its failures below it."""
    seconds = f"{record['seconds']:6.1f} s" if "seconds" in record else " " * 8
    line = (
        f"{record['verdict']:5} {record['name']:24} {seconds}  {'; '.join(record.get('key', []))}"
    )
    return "\n".join([line.rstrip(), *(f"      - {text}" for text in record.get("failures", []))])


def summary(records: list[dict]) -> str:
    """Formats the last line of the table."""
    count = {
        verdict: sum(r["verdict"] == verdict for r in records)
        for verdict in ("pass", "fail", "skip")
    }
    return f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"


def write(path: Path, machine: dict, records: list[dict]) -> None:
    """Writes the record atomically, so that an interrupted run leaves a complete record of its
    checks so far.
    """
    partial = path.with_suffix(".partial")
    text = json.dumps(
        {"schema": SCHEMA, **machine, "checks": records}, indent=1, ensure_ascii=False
    )
    partial.write_text(text + "\n")
    os.replace(partial, path)
