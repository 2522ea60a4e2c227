"""Other projects' tests as judges: each line of suites.txt runs bare and under a limit, and each
test must have the same outcome in both.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import report
from harness import HERE, binary, plain_environment

LIMIT = "32G"
"""Larger than what any of the tests takes, so that only the library's presence differs."""
KINDS = "failure error skipped".split()
"""The elements of JUnit's XML that tell the outcome of a test; without any of them it passed."""
PATIENCE = 120
"""The longest that one line may take, in seconds."""


def lines(text: str) -> list[list[str]]:
    """Returns the words of each line of a list of suites."""
    joined = text.replace("\n ", " ").splitlines()
    return [line.split() for line in joined if line and not line.startswith("#")]


def outcomes(path: Path) -> dict[str, str]:
    """Returns the outcome of each test in a JUnit XML file: passed, or one of `KINDS`."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = [part.tag for part in case if part.tag in KINDS]
        found[f"{case.get('classname')}.{case.get('name')}"] = kinds[0] if kinds else "passed"
    return found


def command(words: list[str], folder: Path, built: Path) -> list[str]:
    """Returns the command for a line. pytest runs below `folder`; a sample is built with nvcc."""
    kind, *parts = words
    results = built / "results.xml"
    if kind == "pytest":
        tests = [str(path) for part in parts for path in sorted(folder.glob(part))] or parts
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        return [sys.executable, "-m", "pytest", *options, *tests]
    if kind == "unittest":
        return [sys.executable, "-m", "xmlrunner", "--output-file", str(results), *parts]
    source = folder / Path(*parts).name
    program = built / source.name
    if not program.exists():
        common = folder / "Common"
        nvcc = ["nvcc", "-std=c++17", "-arch=native", "-w", "--extended-lambda", f"-I{common}"]
        nvcc += ["-Xcompiler", "-fopenmp", *source.glob("*.cu"), common / "helper_multiprocess.cpp"]
        subprocess.run([*nvcc, "-o", program, "-lcublas", "-lcuda"], check=True)
    return [str(program)]


def run(words: list[str], prefix: list[str], folder: Path, built: Path) -> dict[str, str]:
    """Runs a line and returns the outcome of each of its tests, and how the program ended."""
    site = f"{folder / 'site'}:{folder}"
    environment = {**plain_environment(), "PYTHONPATH": site, "PYTHONDONTWRITEBYTECODE": "1"}
    results = built / "results.xml"
    results.unlink(missing_ok=True)
    words = command(words, folder, built)
    with open(built / "output", "w") as output:
        process = subprocess.Popen(
            [*prefix, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = f"status {process.wait(PATIENCE)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = "no end"
    found = outcomes(results) if results.exists() else {}
    return {**found, "the program": ended}


def differences(bare: dict[str, str], limited: dict[str, str]) -> dict[str, list[str]]:
    """Returns the tests whose outcomes differ, with the outcomes."""
    pairs = {name: [bare.get(name, "-"), limited.get(name, "-")] for name in {**bare, **limited}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def judge(words: list[str], folder: Path, built: Path) -> dict:
    """Runs a line in both ways and returns its record. A test that also differs between two bare
    runs proves nothing.
    """
    start, limited = time.monotonic(), [str(binary("gpulimit")), "run", "--max", LIMIT, "--"]
    record = {"name": words[1], "subject": " ".join(words)}
    if words[0] == "sample" and shutil.which("nvcc") is None:
        return {**record, "verdict": "skip", "key": ["no nvcc"]}
    try:
        bare = run(words, [], folder, built)
    except subprocess.CalledProcessError as error:
        return {**record, "verdict": "fail", "failures": [f"does not build: {error}"]}
    other = run(words, limited, folder, built)
    differ = differences(bare, other)
    if "passed" not in bare.values() and bare["the program"] != "status 0":
        said = (built / "output").read_text(errors="replace").strip()[-400:]
        failure = f"no test passes without a limit: {said}"
        return {**record, "verdict": "fail", "failures": [failure]}
    if differ:
        unstable = differences(bare, run(words, [], folder, built))
        differ = {name: pair for name, pair in differ.items() if name not in unstable}
    counts = {kind: list(other.values()).count(kind) for kind in sorted({*other.values()})}
    return {
        **record,
        "seconds": round(time.monotonic() - start, 2),
        "verdict": "fail" if differ else "pass",
        "failures": [f"{name}: bare {pair[0]}, limited {pair[1]}" for name, pair in differ.items()],
        "key": [f"{count} {kind}" for kind, count in counts.items()],
        "outcomes": other,
    }


def main(out: Path, about: dict) -> int:
    """Runs all suites, prints a table and writes suites.json; 1 if outcomes differ."""
    folder, records = HERE / "suites", []
    with tempfile.TemporaryDirectory() as built:
        for words in lines((HERE / "suites.txt").read_text()):
            records.append(judge(words, folder, Path(built)))
            print(report.row(records[-1]), flush=True)
            report.write(out / "suites.json", about, records)
    print(report.summary(records))
    return int(any(record["verdict"] == "fail" for record in records))
