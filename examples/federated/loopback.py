"""A real SuperLink and real SuperNodes on this machine, a process each, started and stopped here.

python examples/federated/loopback.py --clients 4 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

APP = Path(__file__).parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening(port: int) -> bool:
    """Whether somebody does."""
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Loopback:
    """SuperLink and SuperNodes as child processes; leaving the block ends every one of them.

    Args:
        clients: SuperNodes; number k has ``partition-id`` k.
        folder: For logs, Flower's own files and results.
    """

    def __init__(self, clients: int, folder: Path):
        self.clients, self.folder = clients, Path(folder).resolve()
        self.port, self.link = free_port(), None
        self.nodes: dict[int, subprocess.Popen] = {}
        self.env = os.environ | {
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Loopback:
        home = self.folder / "flower"
        home.mkdir(parents=True, exist_ok=True)
        about = f'[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(about)
        where = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        self.link = self._start("superlink", ["flower-superlink", *where])
        try:
            self._wait(lambda: listening(self.port), 60, "the SuperLink does not answer")
            for k in range(self.clients):
                self.start_node(k)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for process in [*self.nodes.values(), self.link]:
            if process is not None:
                self._end(process, signal.SIGTERM)
        for process in [*self.nodes.values(), self.link]:
            if process is not None:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    self._end(process, signal.SIGKILL)
                    process.wait()
                self._end(process, signal.SIGKILL)  # what it started and did not end

    def start_node(self, k: int) -> None:
        """Start SuperNode k, or start it again."""
        words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        words += ["--port", str(free_port())]
        words += ["--node-config", f"partition-id={k} num-partitions={self.clients}"]
        self.nodes[k] = self._start(f"supernode-{k}", words)

    def kill_node(self, k: int) -> None:
        """End SuperNode k and what it runs, at once."""
        self._end(self.nodes[k], signal.SIGKILL)
        self.nodes[k].wait()

    def run(self, **config) -> str:
        """Start the app with this configuration; returns the number of the run."""
        said = " ".join(f"{n}={json.dumps(v)}" for n, v in config.items())
        words = [str(BIN / "flwr"), "run", str(APP), "loopback", "--run-config", said]
        done = subprocess.run(
            [*words, "--format", "json"], env=self.env, text=True, capture_output=True, timeout=120
        )
        if done.returncode:
            raise RuntimeError(f"flwr run failed: {done.stdout}{done.stderr}")
        return json.loads(done.stdout[done.stdout.index("{") :])["run-id"]

    def wait_for(self, path: Path, seconds: float) -> dict:
        """What the app reports, once it does."""
        self._wait(path.exists, seconds, f"no report after {seconds:.0f} s")
        return json.loads(path.read_text())

    def _start(self, name: str, words: list[str]) -> subprocess.Popen:
        with open(self.folder / f"{name}.log", "a") as log:
            words = [str(BIN / words[0]), *words[1:]]
            kind = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            return subprocess.Popen(words, env=self.env, **kind)

    def _end(self, process: subprocess.Popen, how: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)

    def _wait(self, ready, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if self.link is not None and self.link.poll() is not None:
                what = "the SuperLink ended"
            elif time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            logs = "\n".join(p.read_text()[-2000:] for p in sorted(self.folder.glob("*.log")))
            raise TimeoutError(f"{what}\n{logs}")


def main() -> None:
    """Run the app on loopback and print what it reports."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--clients", type=int, default=4)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--out", type=Path, default=None, help="a folder; default a temporary one")
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = Path(asked.out or spare).resolve()
        report, state = folder / "report.json", folder / "state"
        with Loopback(asked.clients, folder) as there:
            options = {"clients": asked.clients, "rounds": asked.rounds}
            there.run(**options, folder=str(state), report=str(report))
            found = there.wait_for(report, 60 + 30 * asked.rounds)
    last = found["evaluate"][str(asked.rounds)]
    print(f"{found['rounds']} rounds of {asked.clients} SuperNodes")
    for name in ("unadapted-loss-mean", "loss-mean", "loss-spread", "loss-worst-decile"):
        print(f"{name:20} {last[name]:.4f}")


if __name__ == "__main__":
    main()
