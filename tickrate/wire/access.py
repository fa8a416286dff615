"""Who may say and hear what at a hub: access rules for its router, by name and role, all else denied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tickrate.wire.credentials import Role
from tickrate.wire.name_registry import HUB, Entry

_FROM_WORKERS = ("hello", "ping", "rows", "report", "status", "infer")
"""Kinds that a worker publishes, each under its own name."""
_TO_WORKERS = ("ack", "refusal", "answer")
"""Kinds that the trainer publishes under a worker's name."""
_FROM_TRAINER = ("weights", "hello", "status", "overview", "report")
"""Kinds that the trainer publishes under the name ``trainer``."""
_PRESENT = "tickrate/*/present/*"


def access_rules(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the ``access_control`` section of the router that these names may join.

    A name must come with its own certificate and its own password. A worker speaks under its own name alone
    and hears what is addressed to it or to all; the trainer's role decides; a viewer only looks. Everybody
    sees who is present. Whatever is not named here is denied.
    """
    sections: dict[str, list[Any]] = {"rules": [], "subjects": [], "policies": []}
    _see_presence(sections["rules"])
    # The hub itself never dials. Its entry keeps both directions filtered when no name was added yet: the
    # router looks at a direction only if some rule speaks of it.
    _grant(sections, HUB, [])
    for entry in entries:
        rules = [
            _rule(f"{entry.name} says", "put", "ingress", _says(entry.name, entry.role)),
            _rule(f"{entry.name} asks", "declare_subscriber", "ingress", _hears(entry.name, entry.role)),
            _rule(f"{entry.name} hears", "put", "egress", _hears(entry.name, entry.role)),
        ]
        if entry.role != "viewer":
            here = [f"tickrate/*/present/{entry.name}"]
            if entry.role == "trainer":
                here.append("tickrate/*/present/inference")  # who acts for workers holds the trainer's key
            rules.append(_rule(f"{entry.name} is present", "liveliness_token", "ingress", here))
        _grant(sections, entry.name, [rule for rule in rules if rule["key_exprs"]])
    return {"enabled": True, "default_permission": "deny", **sections}


def _says(name: str, role: Role | str) -> list[str]:
    if role == "worker":
        return [f"tickrate/*/{kind}/{name}" for kind in _FROM_WORKERS]
    if role == "trainer":
        own = [f"tickrate/*/{kind}/trainer" for kind in _FROM_TRAINER]
        return own + [f"tickrate/*/{kind}/*" for kind in (*_TO_WORKERS, "command")]
    return []


def _hears(name: str, role: Role | str) -> list[str]:
    if role == "worker":
        own = [f"tickrate/*/{kind}/{name}" for kind in _TO_WORKERS]
        trainers = [f"tickrate/*/{kind}/trainer" for kind in ("weights", "hello")]
        return own + trainers + [f"tickrate/*/{kind}/*" for kind in ("status", "overview", "command")]
    if role == "trainer":
        return ["tickrate/*/*/*"]
    return [f"tickrate/*/{kind}/*" for kind in ("status", "overview", "report")]


def _see_presence(rules: list[Any]) -> None:
    asks = _rule("asks who is present", "declare_liveliness_subscriber", "ingress", [_PRESENT])
    asks["messages"].append("liveliness_query")
    rules += [asks, _rule("sees who is present", "liveliness_token", "egress", [_PRESENT])]


def _rule(name: str, message: str, flow: str, keys: list[str]) -> dict[str, Any]:
    return {"id": name, "permission": "allow", "messages": [message], "flows": [flow], "key_exprs": keys}


def _grant(sections: dict[str, list[Any]], name: str, rules: list[dict[str, Any]]) -> None:
    # Certificate and password must both be of this name: a subject matches if all its fields do.
    sections["subjects"].append({"id": name, "cert_common_names": [name], "usernames": [name]})
    sections["rules"] += rules
    shared = ["asks who is present", "sees who is present"]
    sections["policies"].append({"rules": [*shared, *(r["id"] for r in rules)], "subjects": [name]})
