"""Gloo's threads are given time to drop what they hold."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest

from optireduce import gloo_threads
from optireduce.gloo_threads import let_them_rest


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_threads, "_LIMIT_SECONDS", 1e9)


def test_a_thread_of_gloo_that_still_runs_is_waited_for() -> None:
    named, ended = threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop")
        named.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # without the interpreter's lock
        ended.set()

    def ticks() -> int:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[11])

    thread = threading.Thread(target=work)
    thread.start()
    assert named.wait(100)
    while ticks() < 2:
        time.sleep(1e-3)  # until it computes: while it waits for the lock it does not run
    let_them_rest()
    assert ended.is_set()
    thread.join(10)


def test_threads_that_rest_or_are_not_gloos_are_not_waited_for() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    Path(f"/proc/self/task/{threads[0].native_id}/comm").write_text("pt_gloo_runloop")
    let_them_rest()
    assert not stop.is_set()
    stop.set()
    for thread in threads:
        thread.join(10)
