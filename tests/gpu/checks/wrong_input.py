"""Wrong input causes the program's own error and a clear line, never a crash."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from harness import CAP, HERE, MIB, Outcome, Program, bare, capped, check, judged, preloaded, python

HEAPS: tuple[dict[str, str], ...] = (
    {},
    {"GLIBC_TUNABLES": "glibc.malloc.perturb=165"},
    {"GLIBC_TUNABLES": "glibc.malloc.top_pad=67108864:glibc.malloc.tcache_count=0"},
    {"GPU_CHECK_FILL_FREED": "1"},
)
"""The variables that lay out the heap in each turn of `wrong-handles`, and fill freed memory."""


@check("wrong-handles", timeout=1200, lane="alone")
def wrong_handles(outcome: Outcome) -> None:
    """Wrong handles at every function: the same status, signal or hang as without gpulimit."""
    # The driver makes one context at a time, and every case needs one or two: all cases take ten
    # minutes on a GPU.
    part = [] if os.environ.get("GPU_CHECK_ALL_HANDLES") else ["--sample"]
    with tempfile.TemporaryDirectory() as folder:
        expected, found, differences = (
            Path(folder, name) for name in ("bare", "limited", "differences")
        )
        left: dict = {}
        # A difference counts only if it comes again beside the same outcome without gpulimit, also
        # with another heap: what the driver does with freed memory, or with an object of another
        # kind, depends on the bytes there.
        for turn, heap in enumerate(HEAPS):
            chosen = ["--again", str(differences)] if turn else part
            without = bare(handles(*chosen, "--out", str(expected)), **heap)
            limited = preloaded(handles(*chosen, "--out", str(found)), "24G", **heap)
            finish(without)
            finish(limited)
            again = chosen if turn else []
            finish(
                bare(
                    handles(
                        *again, "--compare", str(expected), str(found), "--out", str(differences)
                    )
                )
            )
            left = json.loads(differences.read_text())
            outcome.figures[f"differences {turn + 1}"] = left
            if turn == 0:
                all_of_them = json.loads(expected.read_text())
                outcome.figures["bare"] = all_of_them
                died = [
                    name
                    for name, end in all_of_them.items()
                    if isinstance(end, str) and end.startswith(("signal", "hang"))
                ]
                outcome.key.append(
                    f"{len(all_of_them)} cases, {len(died)} of which end the process without"
                    " gpulimit"
                )
                unset = [
                    name
                    for name, end in all_of_them.items()
                    if isinstance(end, str) and end.startswith("not set up")
                ]
                outcome.expect(not unset, f"not set up: {unset[:5]}")
            if not left:
                break
        outcome.expect(not left, f"{len(left)} end otherwise: {sorted(left)[:10]}")


def handles(*arguments: str) -> list[str]:
    """Returns the command that calls functions with wrong handles."""
    return [sys.executable, str(HERE / "handles.py"), "--workers", "8", *arguments]


def finish(program: Program) -> None:
    """Waits for a program that ends by itself."""
    status = program.finish(600)
    if status:
        raise RuntimeError(f"ended with {status}: {program.tail()}")


@check("below-context", timeout=120)
def below_context(outcome: Outcome) -> None:
    """A limit below a context: out of memory, and a line that says so."""
    with judged(outcome, 100 * MIB):
        program = capped(python("driver.py"), "100M")
        program.reply(30)
        answer = program.ask("start")
        outcome.figures["start"] = answer
        outcome.expect(
            answer.get("status") == 2, f"cuDevicePrimaryCtxRetain under 100 MiB: {answer}"
        )
        program.say("quit", status=42)
        status = program.finish()
        outcome.expect(status == 42, f"exit status {status}, not the program's 42")
        lines = program.refusals()
        outcome.figures["lines"] = lines[:3]
        if outcome.expect(lines, "no line on stderr"):
            outcome.expect(
                "context" in " ".join(lines), f"the line does not speak of the context: {lines[0]}"
            )
            outcome.key.append(lines[0][:160])


@check("below-context-torch", timeout=90, needs=("torch",))
def below_context_torch(outcome: Outcome) -> None:
    """The same under PyTorch: an exception that says out of memory."""
    with judged(outcome, 100 * MIB):
        program = capped(python("torch_agent.py"), "100M")
        program.reply(90)
        answer = program.ask("start")
        outcome.expect("out of memory" in answer.get("text", "").lower(), f"PyTorch says {answer}")
        outcome.key.append(f"{answer.get('error')}")
        outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")


@check("wrong-limit", timeout=60)
def wrong_limit(outcome: Outcome) -> None:
    """An unreadable limit stops the GPU use, not the program, and the line shows the text."""
    for text in ("4Q", "-1", "", "lots"):
        program = preloaded(python("driver.py"), text)
        program.reply(30)
        answer = program.ask("start")
        program.say("quit", status=7)
        status = program.finish()
        # An empty text may mean no limit or be an error; it must only not crash the program.
        if text:
            lines = program.refusals()
            outcome.expect(
                answer.get("status", 0) != 0, f"{text!r}: the GPU could be used: {answer}"
            )
            outcome.expect(
                any(text in line for line in lines), f"{text!r}: no line names it: {program.tail()}"
            )
            outcome.figures[text] = {"start": answer, "lines": lines[:2]}
        outcome.expect("steps" in answer, f"{text!r}: {answer}")
        outcome.expect(status == 7, f"{text!r}: exit status {status}, not the program's 7")
    outcome.key.append(" / ".join(outcome.figures.get("4Q", {}).get("lines", []))[:160])


@check("no-limit", timeout=60)
def no_limit(outcome: Outcome) -> None:
    """Without a limit, the results are the same as without the library, and nothing is printed."""
    found = {}
    for label, program in (
        ("bare", bare(python("driver.py"))),
        ("preloaded", preloaded(python("driver.py"), None)),
    ):
        program.reply(30)
        found[label] = program.ask("calls")
        outcome.expect(program.finish() == 0, f"{label}: ended badly: {program.tail()}")
        if label == "preloaded":
            outcome.expect(not program.errors, f"printed: {program.tail()}")
    different = {
        k: (v, found["preloaded"].get(k))
        for k, v in found["bare"].items()
        if found["preloaded"].get(k) != v
    }
    outcome.figures |= found
    outcome.expect(
        not different and len(found["bare"]) > 15, f"differ: {different or found['bare']}"
    )
    outcome.key.append(f"{len(found['bare'])} results equal")


@check("capped-codes", timeout=60)
def capped_codes(outcome: Outcome) -> None:
    """Under a limit that is not reached, the return codes are the same; only the sizes differ."""
    found = {}
    for label, program in (
        ("bare", bare(python("driver.py"))),
        ("capped", capped(python("driver.py"))),
    ):
        program.reply(30)
        found[label] = program.ask("calls")
        outcome.expect(program.finish() == 0, f"{label}: ended badly: {program.tail()}")
    sizes = ("info", "device")
    different = {
        k: (v, found["capped"].get(k))
        for k, v in found["bare"].items()
        if k not in sizes and found["capped"].get(k) != v
    }
    outcome.expect(
        not different and len(found["bare"]) > 15, f"differ: {different or found['bare']}"
    )
    for name in sizes:
        outcome.expect(found["capped"].get(name) == CAP, f"{name} is {found['capped'].get(name)}")
    outcome.key.append(f"{len(found['bare'])} results equal")
