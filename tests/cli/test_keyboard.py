"""Keys are read one by one from a real terminal, which is given back as it was."""

import os
import sys

import pytest

from tickrate.cli import keyboard
from tickrate.cli.keyboard import Keys

pty = pytest.importorskip("pty", reason="pseudo-terminals exist on POSIX only")


@pytest.fixture
def terminal(monkeypatch):
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "r")
    monkeypatch.setattr(sys, "stdin", stream)
    monkeypatch.setattr(keyboard.os, "tcgetpgrp", lambda fileno: os.getpgrp())
    yield master, stream
    stream.close()
    os.close(master)


def test_keys_come_one_by_one_without_enter(terminal):
    master, stream = terminal
    before = keyboard.termios.tcgetattr(stream)
    with Keys() as pressed:
        assert pressed.pressed() is None
        os.write(master, b"ps")
        assert [pressed.pressed(), pressed.pressed(), pressed.pressed()] == ["p", "s", None]
    assert keyboard.termios.tcgetattr(stream) == before
    assert pressed.pressed() is None


def test_the_terminal_is_given_back_after_an_error(terminal):
    _, stream = terminal
    before = keyboard.termios.tcgetattr(stream)

    def break_off():
        with Keys():
            assert keyboard.termios.tcgetattr(stream) != before
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert keyboard.termios.tcgetattr(stream) == before


def test_a_run_in_the_background_leaves_the_terminal_alone(terminal, monkeypatch):
    master, stream = terminal
    monkeypatch.setattr(keyboard.os, "tcgetpgrp", lambda fileno: os.getpgrp() + 1)
    before = keyboard.termios.tcgetattr(stream)
    with Keys() as pressed:
        assert keyboard.termios.tcgetattr(stream) == before
        os.write(master, b"p\n")
        assert pressed.pressed() is None


@pytest.mark.parametrize("stdin", ["pipe", None])
def test_without_a_terminal_there_are_no_keys(monkeypatch, stdin):
    read, write = os.pipe()
    stream = os.fdopen(read, "r")
    monkeypatch.setattr(sys, "stdin", stream if stdin else None)
    os.write(write, b"p")
    with Keys() as pressed:
        assert pressed.pressed() is None
    stream.close()
    os.close(write)
