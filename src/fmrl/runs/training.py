"""Training from a table: windows of tasks in, a folder out, from which an interrupted run goes on
to the same bits.

A checkpoint is the history of Algorithm 2 after a whole number of windows. Everything else (which
tasks are held out, which rows are set aside for the baselines and for the prior) depends on names
and places alone, so a resumed run reads the table again from its start, plays nothing twice, and is
where it was. The encoding and the data's checksums are stored before the first task is played. The
prior is learned at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fmrl.core.metric import mean_step
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.prior_fit import pilot_size
from fmrl.estimators.rows import joined
from fmrl.files import atomic, sha256, write
from fmrl.records import record, write_json
from fmrl.report.facts import hold_out
from fmrl.runs import folder
from fmrl.runs.algorithm_run import WINDOW, AlgorithmRun
from fmrl.runs.evaluate import Heldout, Reservoir, evaluate
from fmrl.runs.folder import Run, Settings
from fmrl.runs.models import adapt_all
from fmrl.runs.options import Options
from fmrl.runs.source import Source, Window, classes_of, files, not_empty, open_source

KEPT = 10_000_000  # numbers in the models of tasks seen, which are kept up to this many
EVERY = 16_384  # tasks between checkpoints
SHARE = 8  # … and at least this share of those saved: a checkpoint holds the history of all of them
Progress = Callable[[str, int, int | None], None]  # what is done, how far it is, of how much


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
    """Train on a table and leave a run in a folder.

    Args:
        options: The table, what its columns mean, and how to learn.
        out: The folder, made if need be.
        checkpoint_every: Tasks, rounded up to whole windows; in a long run an eighth of those
            saved already, so that writing stays a small part of the work.
        resume: Go on with the run in ``out``, if there is one.
        keep_models: Store the models of the tasks trained on (default: if they are at most ten
            million numbers).
        evaluate_tasks: Held-out tasks to score, at most.
        progress: Called with what is done, how far it is and of how much.
        stop: Asked after every window.
        address: Of the Ray cluster, with engine="ray".
        view: Called with the progress of the cluster, as in `fmrl.cluster.play`.

    Returns:
        The record of the run.

    >>> import tempfile
    >>> home = Path(tempfile.mkdtemp())
    >>> rows = pl.DataFrame({"shop": np.repeat(np.arange(20), 6), "x": np.tile(np.arange(6.0), 20)})
    >>> rows.with_columns(y=0.5 * pl.col("x") + pl.col("shop")).write_csv(home / "rows.csv")
    >>> record = train(Options(str(home / "rows.csv"), "shop", "y"), home / "run")
    >>> record["kind"], record["tasks"], record["heldout_tasks"], record["rows"]
    ('regression', 19, 1, 114)
    """
    if checkpoint_every < 1 or evaluate_tasks < 0:
        what = f"checkpoint_every={checkpoint_every} and evaluate_tasks={evaluate_tasks}"
        raise FMRLError(f"{what} must be positive", fix="give whole numbers of at least 1 and 0")
    with folder.writing(out) as scratch:
        if (out / folder.RECORD).exists() and resume:
            _same(Settings.read(out).options, options, out)
            found = Run.load(out).record
            (out / folder.CHECKPOINT).unlink(missing_ok=True)  # of a run killed as it finished
            return found
        settings, source = _begin(options, out, scratch, resume, progress)
        with record("train", **settings.options.for_record()) as entry:
            given = settings, source, out, progress, evaluate_tasks
            if options.engine == "ray":
                from fmrl.runs.cluster import RaySession

                session: Session = RaySession(*given, address, view)
            else:
                session = Session(*given)
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


def _begin(
    options: Options, out: Path, scratch: Path, resume: bool, progress: Progress
) -> tuple[Settings, Source]:
    """The settings of the run in this folder, or new ones, written there."""
    progress("reading the table", 0, None)
    used = files(options.table, options.engine)
    data = [{"name": path.name, "sha256": sha256(path)} for path in used]
    if (out / folder.SETTINGS).exists():
        if not resume:
            fix = "give --resume to go on with it, or another folder"
            raise FMRLError(f"{out} holds a run already", fix=fix)
        found = Settings.read(out)
        _same(found.options, options, out)
        if found.data != data:
            changed = next((d["name"] for d in data if d not in found.data), "a file of the table")
            what = f"{changed} is not what this run began with"
            raise FMRLError(what, fix="train anew in another folder")
        return found, open_source(options, found.encoder, found.loss, found.expected, scratch)
    source = open_source(options, scratch=scratch)
    found = Settings(options, data, source.encoder, source.loss, source.expected)
    found.write(out)
    return found, source


def _same(held: Options, given: Options, out: Path) -> None:
    """Refuse to go on with a run that was asked for in other words."""
    asked = given.to_dict()
    if differs := [name for name, value in held.to_dict().items() if asked[name] != value]:
        what = f"the run in {out} was begun with another {differs[0]}"
        raise FMRLError(what, fix=f"go on with: {held.command(str(out), '--resume')}")


class Session:
    """One process's share of a run, whose tasks are played here."""

    def __init__(
        self, settings: Settings, source: Source, out: Path, progress: Progress, most: int
    ):
        self.settings, self.source, self.out, self.progress = settings, source, out, progress
        self.most = most
        self.set_aside()
        self.run: AlgorithmRun | None = None
        self.done = self.saved = self.before = 0

    def set_aside(self) -> None:
        """Forget what was read of the table."""
        self.names = pl.Series("task", [], pl.String)  # not five million objects
        self.rows = 0
        seed = self.settings.options.seed
        self.pooled, self.heldout = Reservoir(seed), Heldout(self.most, seed)
        self.pilot: list[Tasks] = []  # tasks spread over all windows
        self.latest: list[Tasks] = []  # and all of the last windows

    def windows(self) -> Iterator[Window]:
        """The windows that have training tasks; what the evaluation needs of all is kept."""
        for number, window in enumerate(self.source.windows()):
            self.heldout.add(window.held)
            if window.tasks is not None:
                self.pooled.add(window.tasks.X, window.tasks.target, number)
                self._spread(window.tasks)
                self.names.append(pl.Series("task", window.names))
                self.rows += len(window.tasks.X)
                yield window

    def _spread(self, tasks: Tasks) -> None:
        """Keep some tasks of a window, as many of each window, for the prior; and the last windows,
        in which there are as many.
        """
        expected, most = self.source.expected, pilot_size(tasks)
        if expected <= WINDOW:
            self.pilot.append(tasks)
            return
        place = (np.arange(len(tasks) + 1) + len(self.names)) * most // expected
        if len(some := np.flatnonzero(np.diff(place))):
            self.pilot.append(tasks.take(some))
        self.latest.append(tasks)
        while sum(map(len, self.latest[1:])) >= most:
            del self.latest[0]

    def play(self, every: int, stop: Callable[[], bool]) -> None:
        """Play what no session before has played."""
        playing = False
        self.progress("playing", 0, self.source.expected)
        try:
            for window in self.windows():
                if self.run is None:
                    self.begin(window.tasks)
                if len(self.names) > self.done:
                    playing = True
                    self.play_window(window)
                    playing = False
                    if self.done - self.saved >= max(every, self.saved // SHARE):
                        self.save()
                self.progress("playing", len(self.names), self.source.expected)
                if stop():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if self.done > self.saved and not playing:
                self.save()
            raise self.stopped() from None
        not_empty(self.done)
        if len(self.names) != self.done:
            what = f"the checkpoint has {self.done} tasks, the table {len(self.names)}"
            raise FMRLError(what, fix="train anew")
        if self.done > self.saved:
            self.save()

    def play_window(self, window: Window) -> None:
        """Play the tasks of a window."""
        self.run.play(window.tasks)  # type: ignore[union-attr]
        self.done += len(window.names)

    def begin(self, tasks: Any) -> None:
        """The first window decides the coordinates; go on where a session before has stopped."""
        options = self.settings.options
        how = self.source.expected, options.intercept, options.radius
        self.run = AlgorithmRun.begin(tasks, options.ingredients(), *how)
        checkpoint = self.out / folder.CHECKPOINT
        if checkpoint.exists():
            try:
                self.run.resume(checkpoint)
            except FMRLError:
                fix = "delete it, and --resume starts over"
                raise FMRLError(f"{checkpoint} is damaged", fix=fix) from None
            self.done = self.saved = self.before = len(self.run.history)

    def learn(self) -> Any:
        """The estimator whose prior is learned from tasks spread over the run."""
        estimator = self.settings.kind(**self.settings.options.estimator())
        latest = joined(self.latest) if self.latest else None
        given = {"classes": classes_of(self.settings.loss), "columns": self.settings.encoder.names}
        return estimator.learn_tasks(joined(self.pilot), **given, count=self.done, latest=latest)

    def about(self) -> dict[str, Any]:
        """Where tasks were played, for the record."""
        return {"engine": {"name": "local"}}

    def save(self) -> None:
        self.run.save(self.out / folder.CHECKPOINT)  # type: ignore[union-attr]
        self.saved = self.done

    def give_up(self) -> None:
        """A run that never began must not stand in the way of a corrected one."""
        if not self.saved and not (self.out / folder.CHECKPOINT).exists():
            (self.out / folder.SETTINGS).unlink(missing_ok=True)

    def stopped(self) -> Stopped:
        """The error that says what is saved and how to go on."""
        again = self.settings.options.command(str(self.out), "--resume")
        what = f"stopped; {self.saved:,} of {self.source.expected:,} tasks are saved"
        return Stopped(what, fix=f"go on with: {again}")

    def finish(self, keep_models: bool | None) -> dict[str, Any]:
        """Evaluate, write everything, and say what came out."""
        self.progress("learning how tasks differ", 0, None)
        estimator, history, out = self.learn(), self.run.history, self.out  # type: ignore[union-attr]
        prior, encoder = estimator.prior_, self.settings.encoder
        held = self.heldout.tasks(prior.environment)
        self.progress("evaluating", 0, len(held))
        shown = lambda done: self.progress("evaluating", done, len(held))  # noqa: E731
        found = evaluate(estimator, held, self.pooled, shown)
        if prior.environment.kind == "recent":
            found["protocol"] += f"; tasks drift, so these are the last {len(held)} held-out tasks"
            seen, followed = self.heldout.seen, prior.environment.window * len(self.names)
            if len(held) * len(self.names) / max(seen, 1) > 1.5 * followed:
                found["protocol"] += (
                    f", most of them older than the {followed:,.0f} that the model follows: the "
                    "next tasks are likely to be predicted better"
                )
                if option := hold_out(self.settings.options.holdout):
                    found["protocol"] += f" (more are held out, and newer, with {option})"
        estimator.save(out / folder.MODEL)
        self.run.save(out / folder.HISTORY)  # type: ignore[union-attr]
        columns = {
            "task": self.names.rechunk(),
            "rows": history.rounds.astype(int),
            "regret": history.regret,
        }
        columns |= {"distance": np.sqrt(np.maximum(history.deviation, 0))}
        with atomic(out / folder.TASKS) as partial:
            pl.DataFrame(columns).write_parquet(partial)
        write_json(out / folder.HELDOUT, found)
        write(out / folder.ENCODER, encoder.to_json())
        written = [folder.MODEL, folder.HISTORY, folder.TASKS, folder.HELDOUT, folder.ENCODER]
        size = len(self.names) * prior.loss.outputs * (estimator.n_features_in_ + 1)
        if keep_models or (keep_models is None and size <= KEPT):
            run = sha256(out / folder.MODEL)
            adapt_all(prior, encoder, self._again(), run).save(out / folder.MODELS)
            written.append(folder.MODELS)
        again = f"A run of fmrl train. To repeat it: {self.settings.options.command('RUN')}\n"
        after = "To read it: fmrl report, certify, cite, adapt, predict.\n"
        write(out / folder.README, again + after)
        rounds = history.rounds
        return {
            "kind": "regression" if prior.classes is None else "classification",
            "classes": classes_of(self.settings.loss),
            "composition": repr(history.algo),
            "tasks": self.done,
            "rows": self.rows,
            "heldout_tasks": self.heldout.seen,
            "features": encoder.names,
            "rows_per_task": [int(rounds.min()), float(np.median(rounds)), int(rounds.max())],
            "tar": [float(end) for end in history.interval],
            "bound": float(history.bound.mean()),
            "guess": mean_step(history.state.guess),
            "resumed_after": self.before,
            **self.about(),
            "heldout": found,
            "files": {name: sha256(out / name) for name in written},
        }

    def _again(self) -> Iterator[Window]:
        """The windows once more, to adapt to their tasks."""
        done = 0
        for window in self.source.windows():
            yield window
            done += len(window.names)
            self.progress("adapting to the tasks seen", done, self.done)
