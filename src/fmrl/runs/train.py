"""Training from a table: windows of tasks in, a folder out, from which an interrupted run goes on
to the same bits.

A checkpoint is the estimator after a whole number of windows. Everything else (which tasks are held
out, which rows are set aside for the baselines) depends on names and places alone, so a resumed run
reads the table again from its start, plays nothing twice, and is where it was. The encoding and the
data's checksums are stored before the first task is played. """

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fmrl.core.checkpoint import save_history
from fmrl.errors import FMRLError
from fmrl.records import record, write_json
from fmrl.runs import folder
from fmrl.runs.evaluate import evaluate
from fmrl.runs.models import adapt_all
from fmrl.runs.options import Options
from fmrl.runs.run import Run, Settings
from fmrl.runs.samples import Heldout, Reservoir
from fmrl.runs.source import Source, classes_of, not_empty
from fmrl.runs.start import Progress, begin, same

KEPT = 10_000_000  # numbers in the models of tasks seen, which are kept up to this many
EVERY = 16_384  # tasks between checkpoints


class Stopped(FMRLError):
    """Training was asked to stop, and did, with what was played saved."""

    exit_code = 130


def train(
    options: Options,
    out: Path,
    *,
    checkpoint_every: int = EVERY,
    resume: bool = False,
    keep_models: bool | None = None,
    evaluate_tasks: int = 100,
    progress: Progress = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
    address: str | None = None,
    view: Callable[[Any], None] = lambda ledger: None,
) -> dict[str, Any]:
    """Train on a table and leave a run in the folder ``out``; returns its record.

    checkpoint_every: tasks, rounded up to whole windows. resume: go on with the run in ``out``, if
    there is one. keep_models: store the models of the tasks trained on (default: if they are at
    most ten million numbers). stop: asked after every window. address, view: of the cluster and its
    progress, as in `fmrl.cluster.play`, for options with engine="ray".

    >>> import tempfile
    >>> home = Path(tempfile.mkdtemp())
    >>> rows = pl.DataFrame({"shop": np.repeat(np.arange(20), 6), "x": np.tile(np.arange(6.0), 20)})
    >>> rows.with_columns(y=0.5 * pl.col("x") + pl.col("shop")).write_csv(home / "rows.csv")
    >>> record = train(Options(str(home / "rows.csv"), "shop", "y"), home / "run")
    >>> record["kind"], record["tasks"], record["heldout_tasks"], record["rows"]
    ('regression', 19, 1, 114)
    """
    if checkpoint_every < 1 or evaluate_tasks < 0:
        raise FMRLError(f"checkpoint_every={checkpoint_every} and evaluate_tasks={evaluate_tasks} must be positive")
    with folder.writing(out) as scratch:
        if (out / folder.RECORD).exists() and resume:
            same(Settings.read(out).options, options, out)
            found = Run.load(out).record
            (out / folder.CHECKPOINT).unlink(missing_ok=True)  # of a run that was killed as it finished
            return found
        settings, source = begin(options, out, scratch, resume, progress)
        with record("train", **settings.options.said()) as entry:
            session = _player(options)(settings, source, out, progress, evaluate_tasks)
            if options.engine == "ray":
                session.address, session.view = address, view
            try:
                session.play(checkpoint_every, stop)
            except FMRLError:
                session.give_up()
                raise
            entry |= {"command": settings.options.command(str(out)), "data": settings.data}
            try:
                entry |= session.finish(keep_models)
            except KeyboardInterrupt:
                raise session.stopped() from None
        folder.write_sealed(out / folder.RECORD, entry)
        (out / folder.CHECKPOINT).unlink(missing_ok=True)
    return folder.read_sealed(out / folder.RECORD)


def _player(options: Options) -> Any:
    if options.engine == "local":
        return _Session
    from fmrl.runs.cluster import Session

    return Session


class _Session:
    """One process's share of a run."""

    def __init__(self, settings: Settings, source: Source, out: Path, progress: Progress, most: int):
        self.settings, self.source, self.out, self.progress = settings, source, out, progress
        self.names: list[str] = []
        self.rows = 0
        self.pooled = Reservoir(seed=settings.options.seed)
        self.heldout = Heldout(most, settings.options.seed)
        self.estimator: Any = None
        checkpoint = out / folder.CHECKPOINT
        if checkpoint.exists():
            try:
                self.estimator = settings.kind.load(checkpoint)
            except FMRLError:
                raise FMRLError(f"{checkpoint} is damaged", fix="delete it, and --resume starts over") from None
        self.done = self.saved = self.before = 0 if self.estimator is None else self.estimator.n_tasks_seen_

    def play(self, every: int, stop: Callable[[], bool]) -> None:
        """Play what no session before has played."""
        playing = False
        self.progress("playing", 0, self.source.expected)
        try:
            for number, window in enumerate(self.source.windows()):
                self.heldout.add(window.held)
                if window.tasks is None:
                    continue
                self.pooled.add(window.tasks.X, window.tasks.y, number)
                self.names += window.names
                self.rows += len(window.tasks.y)
                if len(self.names) > self.done:
                    playing = True
                    self._window(window.tasks, window.names)
                    playing = False
                    if self.done - self.saved >= every:
                        self._save()
                self.progress("playing", len(self.names), self.source.expected)
                if stop():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if self.done > self.saved and not playing:
                self._save()
            raise self.stopped() from None
        not_empty(self.source, self.done)
        if len(self.names) != self.done:
            raise FMRLError(f"the checkpoint has {self.done} tasks, the table {len(self.names)}", fix="train anew")
        if self.done > self.saved:
            self._save()

    def _window(self, tasks: Any, names: list[str]) -> None:
        if self.estimator is None:
            self._begin(tasks)
        self.estimator.play(tasks, names, keep=False)
        self.done += len(names)

    def _begin(self, tasks: Any) -> None:
        """The first window decides chart and rule."""
        self.estimator = self.settings.kind(**self.settings.options.estimator())
        given = {"classes": classes_of(self.settings.loss), "features": self.settings.encoder.names}
        self.estimator.begin(tasks, **given, expected=self.source.expected)

    def about(self) -> dict[str, Any]:
        """Where tasks were played, for the record."""
        return {"engine": {"name": "local"}}

    def _save(self) -> None:
        self.estimator.save(self.out / folder.CHECKPOINT)
        self.saved = self.done

    def give_up(self) -> None:
        """A run that never began must not stand in the way of a corrected one."""
        if not self.saved:
            (self.out / folder.SETTINGS).unlink(missing_ok=True)

    def stopped(self) -> Stopped:
        """The error that says what is saved and how to go on."""
        again = self.settings.options.command(str(self.out), "--resume")
        return Stopped(f"stopped; {self.saved:,} of {self.source.expected:,} tasks are saved", fix=f"go on with: {again}")

    def finish(self, keep_models: bool | None) -> dict[str, Any]:
        """Evaluate, write everything, and say what came out."""
        estimator, history, out = self.estimator, self.estimator.history_, self.out
        prior, held = estimator.prior_, self.heldout.tasks
        self.progress("evaluating", 0, len(held))
        scored = iter(range(1, len(held) + 1))
        found = evaluate(prior, held, self.pooled, lambda _: self.progress("evaluating", next(scored), len(held)))
        estimator.save(out / folder.MODEL)
        save_history(history, out / folder.HISTORY)
        columns = {"task": self.names, "rows": history.rounds.astype(int), "regret": history.regret}
        columns |= {"distance": np.sqrt(np.maximum(history.deviation, 0))}
        with folder.atomic(out / folder.TASKS) as partial:
            pl.DataFrame(columns).write_parquet(partial)
        write_json(out / folder.HELDOUT, found)
        with folder.atomic(out / folder.ENCODER) as partial:
            partial.write_text(self.settings.encoder.to_json(), encoding="utf-8")
        written = [folder.MODEL, folder.HISTORY, folder.TASKS, folder.HELDOUT, folder.ENCODER]
        size = len(self.names) * prior.loss.outputs * (estimator.n_features_in_ + 1)
        if keep_models or (keep_models is None and size <= KEPT):
            run = folder.sha256(out / folder.MODEL)
            windows = ((w.names, w.tasks) for w in self._again() if w.tasks is not None)
            adapt_all(prior, self.settings.encoder, windows, run).save(out / folder.MODELS)
            written.append(folder.MODELS)
        command = self.settings.options.command("RUN")
        with folder.atomic(out / folder.README) as partial:
            partial.write_text(
                f"A run of fmrl train. To repeat it: {command}\nTo read it: fmrl report, certify, cite, adapt, predict.\n"
            )
        low, high = (float(end) for end in history.interval)
        return {
            "kind": "regression" if prior.classes is None else "classification",
            "classes": classes_of(self.settings.loss),
            "composition": repr(history.algo),
            "tasks": self.done,
            "rows": self.rows,
            "heldout_tasks": self.heldout.seen,
            "features": self.settings.encoder.names,
            "rows_per_task": [int(history.rounds.min()), float(np.median(history.rounds)), int(history.rounds.max())],
            "tar": [low, high],
            "bound": float(history.bound.mean()),
            "guess": float(history.state.guess),
            "resumed_after": self.before,
            **self.about(),
            "heldout": found,
            "files": {name: folder.sha256(out / name) for name in written},
        }

    def _again(self) -> Any:
        """The windows once more, to adapt to their tasks."""
        done = 0
        for window in self.source.windows():
            yield window
            done += len(window.names)
            self.progress("adapting to the tasks seen", done, self.done)
