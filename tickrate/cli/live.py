"""What a person sees while a run goes on: a live view in a terminal, plain lines everywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tickrate.cli.worker_lines import alarm_lines, delivery_text, number, printable, worker_lines
from tickrate.runtime.overview import WorkerView
from tickrate.runtime.run import RunState
from tickrate.wire.messages import EpisodeReport, Status

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_EVERY_S = 5.0
SPELT_OUT = 4
"""Workers whose words stand in a plain line; of more, only the number."""


class View(Protocol):
    """Shows the state of a run; used as a context manager."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, state: RunState) -> None:
        """Show the present state."""
        ...


def make_view(title: str, *, total_s: float | None, total_steps: int | None, keys: bool = True) -> View:
    """Return a live view if standard output is a terminal, else one that prints plain lines."""
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, title, total_s, total_steps, keys=keys)
    return PlainView(console, total_s, total_steps)


def progress(state: RunState, total_s: float | None, total_steps: int | None) -> tuple[float, str] | None:
    """Return (share done, words) of a run whose length is known, else None."""
    if total_steps is not None:
        steps = state.metric("trainer", "trainer/steps") or 0.0
        return min(1.0, steps / total_steps), f"{steps:,.0f} of {total_steps:,} steps"
    if total_s is not None:
        return min(1.0, state.elapsed_s / total_s), f"{clock_text(state.elapsed_s)} of {clock_text(total_s)}"
    return None


def clock_text(seconds: float) -> str:
    """Return ``m:ss``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def sparkline(values: list[float], width: int) -> str:
    """Return the last ``width`` values as a row of blocks, scaled from the least to the greatest."""
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in shown)


def status_text(status: Status | None) -> str:
    """Return what a role is doing, in words."""
    if status is None:
        return "starting"
    return printable(status.text if status.role == "worker" else f"{status.state}: {status.text}")


def worker_views(state: RunState) -> list[WorkerView]:
    """Return the workers of a run, their own words with the trainer's figures."""
    views = []
    for status in state.workers:
        known = state.delivery(status.worker) or WorkerView(name=status.worker, connected=True)
        views.append(msgspec.structs.replace(known, state=status.state, text=status_text(status)))
    return views


def episode_text(report: EpisodeReport) -> str:
    """Return one line about an episode."""
    kind = "evaluation" if report.evaluation else "training"
    parts = [f"{kind} episode: return {report.return_:.2f}", f"{report.steps} steps", report.ended]
    if report.lap_time_s is not None:
        parts.append(f"lap {lap_text(report)}")
    return ", ".join(parts)


def lap_text(report: EpisodeReport) -> str:
    """Return the lap time of an episode, with what made it unclean, or an empty string."""
    if report.lap_time_s is None:
        return ""
    return f"{report.lap_time_s:.2f} s" + ("" if report.clean else " (contact)")


def best_lap(state: RunState) -> EpisodeReport | None:
    """Return the episode with the fastest clean lap."""
    laps = [r for r in state.episodes if r.lap_time_s is not None and r.clean]
    return min(laps, key=lambda r: r.lap_time_s or 0.0, default=None)


class LiveView:
    """A panel that is redrawn in place: roles, timing, learning, returns, lap times."""

    def __init__(
        self,
        console: Console,
        title: str,
        total_s: float | None,
        total_steps: int | None,
        *,
        keys: bool = True,
    ) -> None:
        self._title, self._total_s, self._total_steps, self._keys = title, total_s, total_steps, keys
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, state: RunState) -> None:
        """Redraw."""
        self._live.update(self.render(state))

    def render(self, state: RunState) -> Panel:
        """Return the panel for a state."""
        parts: list[Text | Table | ProgressBar] = [*self._roles(state), Text(), self._figures(state), Text()]
        parts.append(self._episodes(state))
        if state.overview is not None:
            parts += alarm_lines(state.overview)
        if (done := progress(state, self._total_s, self._total_steps)) is not None:
            parts += [Text(), Text(done[1], style="dim"), ProgressBar(total=1.0, completed=done[0])]
        if state.notes:
            parts.append(Text(state.notes[-1], style="yellow"))
        pause = "p go on" if state.paused else "p pause"
        hint = f"{pause} · s stop the device at once · " if self._keys else ""
        return Panel(
            Group(*parts),
            title=self._title,
            subtitle=f"{hint}Ctrl-C end and save",
            border_style="yellow" if state.paused else "cyan",
        )

    def _roles(self, state: RunState) -> list[Text | Table]:
        """Return what the roles do: one worker in words, several in a table with their figures."""
        table = Table.grid(padding=(0, 2))
        trainer = Text("trainer", style="bold"), Text(status_text(state.statuses.get("trainer")))
        if len(state.workers) > 1:
            table.add_row(*trainer)
            return [*worker_lines(worker_views(state)), Text(), table]
        for status in state.workers:
            table.add_row(Text(status.worker, style="bold"), Text(status_text(status)))
            if (view := state.delivery(status.worker)) is not None:
                table.add_row("", Text(delivery_text(view), style="dim"))
        if not state.workers:
            table.add_row(Text("worker", style="bold"), Text(status_text(None)))
        table.add_row(*trainer)
        return [table]

    def _figures(self, state: RunState) -> Table:
        def m(name: str) -> float | None:
            return state.metric("trainer", name)

        table = Table.grid(padding=(0, 3))
        table.add_row(
            f"rate {number(m('timing/achieved_hz'), '.2f')} Hz",
            f"late p50 {number(m('timing/lateness_p50_ms'), '.2f')} ms",
            f"p99 {number(m('timing/lateness_p99_ms'), '.2f')} ms",
            f"overruns {number(m('timing/overruns'), '.0f')}",
        )
        table.add_row(
            f"steps {number(m('trainer/steps'), ',.0f')}",
            f"updates/s {number(m('learn/updates_per_s'), '.1f')}",
            f"policy {number(m('trainer/policy_version'), '.0f')}",
            f"lag {number(m('learn/policy_lag_versions'), '.0f')} versions, "
            f"{number(m('learn/policy_lag_s'), '.2f')} s",
        )
        return table

    def _episodes(self, state: RunState) -> Table:
        training = [r.return_ for r in state.episodes if not r.evaluation]
        evaluations = [r for r in state.episodes if r.evaluation]
        table = Table.grid(padding=(0, 2))
        if training:
            table.add_row("return", Text(sparkline(training, 50), style="green"), f"last {training[-1]:.1f}")
        if evaluations:
            last = evaluations[-1]
            words = f"policy {last.policy_version}: return {last.return_:.1f}"
            table.add_row("evaluation", words, lap_text(last))
        laps = [r for r in state.episodes if r.lap_time_s is not None]
        if laps:
            table.add_row("laps", "  ".join(lap_text(r) for r in laps[-5:]), f"{len(laps)} so far")
        if (best := best_lap(state)) is not None:
            table.add_row("best lap", Text(lap_text(best), style="bold green"), "clean")
        return table


class PlainView:
    """One line every few seconds and one for each lap and evaluation, for logs and pipes."""

    def __init__(self, console: Console, total_s: float | None, total_steps: int | None) -> None:
        self._console, self._total_s, self._total_steps = console, total_s, total_steps
        self._next = 0.0
        self._seen = 0
        self._noted = 0
        self._alarms: dict[tuple[str, str], str] = {}

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def show(self, state: RunState) -> None:
        """Print what is new."""
        new = min(state.finished_episodes - self._seen, len(state.episodes))
        self._seen = state.finished_episodes
        for report in list(state.episodes)[len(state.episodes) - new :]:
            if report.evaluation or report.lap_time_s is not None:
                self._print(state, episode_text(report))
        for note in state.notes[self._noted :]:
            self._print(state, note)
        self._noted = len(state.notes)
        self._tell_alarms(state)
        if state.elapsed_s < self._next:
            return
        self._next = state.elapsed_s + PLAIN_EVERY_S
        workers, trainer = state.workers, state.statuses.get("trainer")
        training = [r.return_ for r in state.episodes if not r.evaluation]
        words = [f"{w.worker if len(workers) > 1 else 'worker'}: {status_text(w)}" for w in workers]
        if len(workers) > SPELT_OUT:
            words = [f"{len(workers)} workers"]
        words = words or [f"worker: {status_text(None)}"]
        words += [
            f"trainer: {status_text(trainer)}",
            f"steps {number(state.metric('trainer', 'trainer/steps'), '.0f')}",
            f"{number(state.metric('trainer', 'timing/achieved_hz'), '.2f')} Hz",
            f"late p99 {number(state.metric('trainer', 'timing/lateness_p99_ms'), '.2f')} ms",
            f"{number(state.metric('trainer', 'learn/updates_per_s'), '.1f')} updates/s",
        ]
        if training:
            words.append(f"last return {training[-1]:.2f}")
        self._print(state, " | ".join(words))

    def _tell_alarms(self, state: RunState) -> None:
        """Say which alarms are new and which are over; their numbers change all the time."""
        if state.overview is None:
            return
        now = {(w.name, alarm.kind): alarm.text for w in state.overview.workers for alarm in w.alarms}
        for (name, kind), text in now.items():
            if (name, kind) not in self._alarms:
                self._print(state, printable(f"ALARM {name}: {text}"))
        for (name, kind), text in self._alarms.items():
            if (name, kind) not in now:
                self._print(state, printable(f"over: {name}: {text}"))
        self._alarms = now

    def _print(self, state: RunState, text: str) -> None:
        line = f"[{clock_text(state.elapsed_s)}] {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
