"""Files that others wrote: every loader is given changed bytes, and values changed and then sealed
anew, so that checksums do not save it.

`check` makes one such file from a seed and loads it. Anything but a value or an FMRLError is wrong,
and so is more than `MEMORY` bytes or `SECONDS`, which `limited` sets for the process.

    python benchmarks/soak/forge.py 17        forge and load file 17
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import fmrl
from fmrl.cluster.plan import _manifest
from fmrl.core.values import parse
from fmrl.estimators import storage
from fmrl.files import read_json
from fmrl.runs import Options, Run, folder, train
from fmrl.runs.facts import facts
from fmrl.runs.models import Models
from fmrl.tables.encoder import Encoder
from fmrl.theory.certificate import Certificate, certify

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults import mutate_bytes, write_table

MEMORY, SECONDS = 2 << 30, 20
ODD: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), "", "x", "🙂" * 40, [], {}, [None],
    {"array": "state0"}, {"repr": "OMD()"}, "OneVsAll(99999999999)", "Ball(1e999)", [[[[[1]]]]],
]  # fmt: skip
ODD += [json.loads("[" * 60 + "]" * 60), "9" * 5000, "../../etc/passwd", {"metric": "Full"}]


def limited() -> None:
    """Bound what this process may take."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if soft == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.RLIM_INFINITY))


class Prey:
    """One file of every kind."""

    def __init__(self, home: Path):
        self.home = home
        table = write_table(home / "table.csv", 30)
        frame = pl.read_csv(table)
        frame.write_parquet(home / "table.parquet")
        frame.write_ipc(home / "table.arrow")
        train(Options(str(table), "user", "liked", common="linear"), home / "run", evaluate_tasks=2)
        run = Run.load(home / "run")
        run.estimator.save(home / "model")
        fmrl.save_history(run.history, home / "history")
        fmrl.save_state(run.history.state, home / "state")
        models = run.models
        if models is not None:
            models.save(home / "models.json")
            models.save(home / "models.safetensors")
        (home / "encoder.json").write_text(run.encoder.to_json())
        certificate = certify(run.history)
        (home / "certificate.json").write_text(certificate.json())
        facts = {"title": "t", "certificate": certificate.to_dict()}
        (home / "facts.json").write_text(json.dumps(folder.plain(facts)))
        (home / "run.json").write_text(json.dumps({"run": "x", "algo": "y", "tasks": 3}))
        (home / "value").write_text(repr(run.history.algo))


@cache
def prey() -> Prey:
    """Made once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="fmrl-forge-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Prey(folder)


def _run(path: Path) -> Any:
    run = Run.load(path)
    return run.estimator, run.history, run.models, run.start, run.settings.kind, facts(run)


def _sealed(value: Any) -> bytes:
    return json.dumps(folder.seal({k: v for k, v in value.items() if k != "sha256"})).encode()


def _plain(value: Any) -> bytes:
    return json.dumps(value).encode()


def _npz(path: Path, rng: random.Random) -> bytes:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    if rng.random() < 0.3:
        name = rng.choice(sorted(arrays))
        arrays[name] = rng.choice([np.zeros(0), np.zeros((3, 3)), np.array(["a"]), np.full(2, 1j)])
    if "layout" in arrays and arrays["layout"].dtype == np.uint8:
        layout = mutate(json.loads(bytes(arrays["layout"])), rng)
        arrays["layout"] = np.frombuffer(_plain(layout), np.uint8)
    out = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.1 else np.savez)(out, **arrays)
    return out.getvalue()


def _tensors(path: Path, rng: random.Random, seal: Callable[[Any, dict], Any]) -> bytes:
    from safetensors import safe_open
    from safetensors.numpy import save

    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["fmrl"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if rng.random() < 0.3:
        name = rng.choice(sorted(arrays))
        if rng.random() < 0.3:
            del arrays[name]
        else:
            arrays[name] = rng.choice([np.zeros(0), np.zeros((3, 3)), np.arange(2)])
    about = mutate({k: v for k, v in about.items() if k != "sha256"}, rng)
    return save(arrays, {"fmrl": json.dumps(seal(about, arrays))})


def _seal_model(about: Any, arrays: dict) -> Any:
    return about | {"sha256": storage._digest(storage._text(about), arrays)}


def _seal_models(about: Any, arrays: dict) -> Any:
    from fmrl.runs.models import ARRAYS, _digest

    if all(name in arrays for name in ARRAYS):
        about = about | {"arrays": _digest(arrays)}
    return folder.seal(about)


def mutate(value: Any, rng: random.Random) -> Any:
    """One to three places of a JSON value are taken away, doubled or made odd."""
    value = copy.deepcopy(value)
    for _ in range(rng.randrange(1, 4)):
        here = value
        while isinstance(here, (dict, list)) and len(here):
            key = rng.choice(sorted(here, key=str) if isinstance(here, dict) else range(len(here)))
            inner = here[key]
            if isinstance(inner, (dict, list)) and len(inner) and rng.random() < 0.6:
                here = inner
                continue
            if rng.random() < 0.3:
                del here[key]
            else:
                here[key] = copy.deepcopy(rng.choice(ODD))
            break
    return value


def _json(path: Path, rng: random.Random, seal: Callable[[Any], bytes]) -> bytes:
    return seal(mutate(json.loads(path.read_bytes()), rng))


def _text(path: Path, rng: random.Random) -> bytes:
    text = path.read_text()
    at = rng.randrange(len(text))
    return (text[:at] + rng.choice([str(o) for o in ODD]) + text[at + rng.randrange(9) :]).encode()


def _tasks(path: Path) -> Any:
    return list(fmrl.tasks_from_frame(path, task="user", target="liked", apart="gather"))


def _page(path: Path, out: Path) -> None:
    try:
        given = read_json(path)
    except ValueError:  # it is no JSON
        return
    fmrl.report.write(given, out)


def kinds(home: Path) -> dict[str, tuple[Path, Callable, Callable]]:
    """The file, how it is forged, and how it is loaded, by name."""
    run, out = home / "run", home / "page.html"
    text = lambda p: p.read_text(errors="replace")  # noqa: E731
    sealed = lambda p, r: _json(p, r, _sealed)  # noqa: E731
    plain = lambda p, r: _json(p, r, _plain)  # noqa: E731
    model = lambda p, r: _tensors(p, r, _seal_model)  # noqa: E731
    found: dict[str, tuple[Path, Callable, Callable]] = {
        "model": (home / "model", model, fmrl.MetaClassifier.load),
        "state": (home / "state", _npz, fmrl.load_state),
        "history": (home / "history", _npz, fmrl.load_history),
        "settings": (run / folder.SETTINGS, sealed, lambda p: _run(p.parent)),
        "record": (run / folder.RECORD, sealed, lambda p: _run(p.parent)),
        "encoder": (home / "encoder.json", plain, lambda p: Encoder.from_json(text(p))),
        "certificate": (
            home / "certificate.json", plain, lambda p: Certificate.from_json(text(p)),
        ),
        "facts": (home / "facts.json", plain, lambda p: _page(p, out)),
        "manifest": (home / "run.json", plain, _manifest),
        "value": (home / "value", _text, lambda p: parse(text(p))),
        "parquet": (home / "table.parquet", lambda p, r: mutate_bytes(p.read_bytes(), r), _tasks),
        "arrow": (home / "table.arrow", lambda p, r: mutate_bytes(p.read_bytes(), r), _tasks),
        "csv": (home / "table.csv", lambda p, r: mutate_bytes(p.read_bytes(), r), _tasks),
    }  # fmt: skip
    if (home / "models.json").exists():
        models = lambda p, r: _tensors(p, r, _seal_models)  # noqa: E731
        found["models.json"] = (home / "models.json", sealed, Models.load)
        found["models.safetensors"] = (home / "models.safetensors", models, Models.load)
    return found


def check(seed: int) -> str | None:
    """What is wrong with how forged file ``seed`` is taken; None if nothing is."""
    rng, every = random.Random(seed), kinds(prey().home)
    name = sorted(every)[seed % len(every)]
    path, forge, load = every[name]
    whole = path.read_bytes()
    body = mutate_bytes(whole, rng) if rng.random() < 0.3 else forge(path, rng)
    path.write_bytes(body)
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        quiet = contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO())
        with warnings.catch_warnings(), np.errstate(all="ignore"), quiet[0], quiet[1]:
            warnings.simplefilter("ignore")
            load(path)
    except fmrl.FMRLError:
        return None
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno}"
        return f"{name}: {type(error).__name__}: {str(error)[:200]} ({where})"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        path.write_bytes(whole)
    return None


def _late(number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


if __name__ == "__main__":
    prey()
    limited()
    print(check(int(sys.argv[1])) or "sound")
