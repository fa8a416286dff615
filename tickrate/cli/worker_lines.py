"""Workers as aligned lines of text: what they do, what they deliver, how old their policy is, and alarms."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tickrate.runtime.overview import Overview, WorkerView

HEAD = ("worker", "state", "samples/s", "outbox", "acknowledged", "policy lag")


def worker_lines(workers: Sequence[WorkerView]) -> list[Text]:
    """Return one line a worker below a line of headings, in columns."""
    rows = [HEAD, *(_cells(worker) for worker in workers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for number, row in enumerate(rows):
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        style = "dim" if number == 0 else "red" if workers[number - 1].alarms else ""
        lines.append(Text(text, style=style, no_wrap=True))
    return lines


def alarm_lines(overview: Overview) -> list[Text]:
    """Return one line an alarm; the word ALARM stands for the colour where there is none."""
    return [Text(f"ALARM {printable(alarm)}", style="bold red") for alarm in overview.alarms]


def delivery_text(worker: WorkerView) -> str:
    """Return how the delivery of one worker stands, on part of a line."""
    _, _, rate, waiting, acknowledged, _ = _cells(worker)
    return f"samples/s {rate} · outbox {waiting} · acknowledged {acknowledged}"


def _cells(worker: WorkerView) -> tuple[str, ...]:
    state = printable(worker.text or worker.state)
    if worker.purpose not in (None, "train"):
        state = f"{printable(worker.purpose or '')}: {state}"
    if not worker.connected:
        state = f"({printable(worker.state)}) {printable(worker.text)}".rstrip()
    return (
        printable(worker.name),
        shortened(state, 48),
        number(worker.samples_per_s, ".1f"),
        outbox(worker),
        ago(worker.acknowledgement_age_s),
        lag(worker),
    )


def outbox(worker: WorkerView) -> str:
    """Return how full the outbox of a worker is."""
    large = worker.outbox_bytes is not None and worker.outbox_bytes >= 100_000
    size = f", {(worker.outbox_bytes or 0) / 1e6:.1f} MB" if large else ""
    return f"{number(worker.outbox_rows, ',d')} rows{size}"


def lag(worker: WorkerView) -> str:
    """Return the policy lag of a worker in words."""
    versions, seconds = worker.policy_lag_versions, worker.policy_lag_s
    if versions is None and seconds is None:
        return "-" if worker.policy_version is None else f"policy {worker.policy_version}"
    return f"{number(versions, 'd')} versions, {number(seconds, '.1f')} s"


def ago(seconds: float | None) -> str:
    """Return an age in words."""
    if seconds is None:
        return "-"
    return "all" if seconds == 0 else f"{seconds:.1f} s ago"


def number(value: float | None, form: str) -> str:
    """Return a number, or a dash for None."""
    return "-" if value is None else format(value, form)


def printable(text: str) -> str:
    """Return text from the network without what could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shortened(text: str, length: int) -> str:
    """Return text of at most ``length`` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"
