"""Drives every route of /openapi.json with what it allows and what it does not: `make fuzz-api`.

A real `kvasir serve` with the real engine process on a fake runner; schemathesis makes the requests and judges the
answers. Nothing may end in a 5xx, hang or differ from what is documented. Usage: api.py [CASES [SEED]]
"""

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes import checkpoints
from fakes.api_process import HERE, ApiProcess, api_process

SERVE = (sys.executable, str(HERE / "serve_fake.py"))
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
HANGS_AFTER_S = 30
REPEATED = 1.4
"""What is generated twice is sent once."""


def num_operations(server: ApiProcess) -> int:
    """Methods of all documented paths."""
    return sum(map(len, server.ask("/openapi.json").json["paths"].values()))


def command(server: ApiProcess, *, examples: int, seed: int, phases: str) -> list[str]:
    """The call of schemathesis. examples: for each operation; the phases coverage and examples come on top."""
    return [
        str(SCHEMATHESIS),
        "run",
        f"http://{server.http[0]}:{server.http[1]}/openapi.json",
        f"--checks={','.join(CHECKS)}",
        f"--phases={phases}",
        f"--max-examples={examples}",
        f"--seed={seed}",
        f"--request-timeout={HANGS_AFTER_S}",
        "--suppress-health-check=all",
        "--generation-database=none",
        "--continue-on-failure",
        "--no-color",
        "--warnings=off",
    ]


def drive(server: ApiProcess, *, examples: int, seed: int, phases: str) -> tuple[int, str]:
    """The exit status of schemathesis and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command(server, examples=examples, seed=seed, phases=phases),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            check=False,
        )
    return done.returncode, done.stdout


def num_cases(said: str) -> int:
    """How many requests schemathesis says that it made."""
    found = re.search(r"([\d,]+) generated", said)
    return int(found[1].replace(",", "")) if found else 0


def main(cases: int = 20_000, seed: int = 1) -> int:
    """0 when nothing was found in at least so many cases."""
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoints.write(Path(folder) / "tiny")
        with api_process(model, command=SERVE) as server:
            examples = math.ceil(cases * REPEATED / num_operations(server))
            status, said = drive(server, examples=examples, seed=seed, phases="examples,coverage,fuzzing")
            alive = server.ask("/health").status
    print(said)
    print(json.dumps({"cases": num_cases(said), "status": status, "health_after": alive}))
    return status or int(num_cases(said) < cases or alive != 200)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
