"""No text of a site reaches the operator's terminal with control characters."""

from __future__ import annotations

import io
import logging

import pytest

from ffalm.federate.deploy.process_log import SafeFormatter, escape_records, without_control_characters

CLEAR = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e"


def test_escape_sequences_are_shown_as_text_and_lines_stay_lines() -> None:
    safe = without_control_characters(f"a{CLEAR}\n\tb é 漢")
    assert safe == "a\\x1b[2J\\x1b]0;owned\\x07\\r\\x9b31m\\u202e\n\tb é 漢"


def test_messages_arguments_and_traces_are_escaped() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(SafeFormatter("%(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        raise ValueError(CLEAR)
    except ValueError:
        log.exception("The site %s failed", CLEAR)
    assert "\x1b" not in out.getvalue() and "\\x1b[2J" in out.getvalue() and "\nTraceback" in out.getvalue()


def test_loggers_of_others_write_safe_messages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.getLogRecordFactory()
    try:
        escape_records()
        out = io.StringIO()
        log = logging.Logger("flwr")
        log.addHandler(logging.StreamHandler(out))
        log.error("node %s", CLEAR)
    finally:
        logging.setLogRecordFactory(before)
    assert "\x1b" not in out.getvalue() and "\\x1b" in out.getvalue()
