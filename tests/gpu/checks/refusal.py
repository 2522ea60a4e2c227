"""The line that explains a refusal."""

from __future__ import annotations

import re

from harness import CAP, GIB, Outcome, capped, check, judged, python, started

SIZE = r"[\d.]+ (?:GiB|MiB|KiB|B|bytes)"
LINE = re.compile(
    rf"^gpulimit: refused (?P<call>\w+) of (?P<size>{SIZE}) on GPU (?P<gpu>\d+)"
    r" \((?P<uuid>(?:GPU|MIG)-[0-9a-f]+…?[^)]*)\): "
    rf"(?P<left>{SIZE}) left of (?P<max>{SIZE}) in (?P<group>[\w.-]+); "
    rf"most is used by pid (?P<pid>\d+) \((?P<command>.+?)\) (?P<own>{SIZE})\. "
    r"`gpulimit why` explains it$"
)


@check("refusal-line", timeout=60)
def refusal_line(outcome: Outcome) -> None:
    """A refusal is CUDA_ERROR_OUT_OF_MEMORY and one line with group, sizes and pid, not a flood."""
    with judged(outcome, CAP):
        program = capped(python("driver.py"), name="train")
        pid = started(outcome, program)
        program.ask("alloc", size=GIB, times=3)
        refused = program.ask("alloc", size=2 * GIB)
        outcome.expect(refused.get("status") == 2, f"2 GiB beside 3 of 4: {refused}")
        for _ in range(500):
            program.ask("alloc", size=2 * GIB)
        outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    lines = program.refusals()
    outcome.figures["lines"] = lines[:5]
    if not outcome.expect(lines, f"no line on stderr: {program.tail()}"):
        return
    found = LINE.match(lines[0])
    outcome.key.append(lines[0][:160])
    if outcome.expect(found, f"the line reads otherwise: {lines[0]}"):
        assert found
        outcome.expect(found["group"] == "train", f"group {found['group']}")
        outcome.expect(found["call"] == "cuMemAlloc", f"call {found['call']}")
        outcome.expect(
            found["size"] == "2.0 GiB" and found["max"] == "4.0 GiB",
            f"sizes {found['size']}, {found['max']}",
        )
        outcome.expect(int(found["pid"]) == pid, f"pid {found['pid']}, not {pid}")
    outcome.expect(len(lines) <= 30, f"{len(lines)} lines for 501 quick refusals")
