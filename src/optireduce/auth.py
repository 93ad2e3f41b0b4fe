"""What tells a group's packets from a stranger's: see docs/security.md."""

from __future__ import annotations

import secrets
from typing import Literal

Auth = Literal["auto", "mac", "token"]

SECRET_BYTES = 16


def new_secret() -> bytes:
    """For one process group: the key of its tags, or its token and as much again. Never shown to anybody."""
    return secrets.token_bytes(SECRET_BYTES)


def effective_auth(auth: Auth, hosts: int) -> Literal["mac", "token"]:
    """What ``auto`` means: tags between hosts, where the network is slower than hashing and others may read
    it; on one host only root can read what is sent, and hashing would cost much of the speed."""
    if auth != "auto":
        return auth
    return "mac" if hosts > 1 else "token"
