"""Passwords in the addresses of databases and object stores, which are neither printed nor written to a file."""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["secrets_of", "without_secrets"]

HIDDEN = "***"
ADDRESS = re.compile(r"""[^\s'"<>]*?://[^\s'"<>]*""")
"""An address within a line of text."""
SECRET_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|secret|token|key|sig|cred|auth)[^=&]*=)([^&#]*)", re.IGNORECASE)
"""A parameter of an address whose name says that its value is to be hidden: of a signed address, or a password."""


def secrets_of(address: str) -> set[str]:
    """Returns the passwords that an address holds, each as it is written and decoded: the text between a user and @,
    and the values of parameters such as ``password`` and ``X-Amz-Signature``."""
    written = {value for _, value in SECRET_PARAMETER.findall(address)} | {_login(address).partition(":")[2]}
    return {secret for text in written for secret in (text, unquote(text)) if secret}


def without_secrets(text: str, address: str = "") -> str:
    """Returns a text in which the passwords of all addresses are hidden, and those of ``address`` wherever they are."""
    for secret in sorted(secrets_of(address), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    return ADDRESS.sub(lambda match: _hidden(match[0]), text)


def _hidden(address: str) -> str:
    """Returns an address without its user and password, and without the values of secret parameters."""
    login = _login(address)
    shown = address.replace(f"://{login}@", f"://{HIDDEN}@", 1) if login else address
    return SECRET_PARAMETER.sub(rf"\1{HIDDEN}", shown)


def _login(address: str) -> str:
    """Returns user:password of an address, or nothing where it has no password.

    All up to the last @ counts, for a secret key may hold slashes; host:8080/name@place holds a port.
    """
    rest = address.partition("://")[2]
    host, _, path = rest.partition("/")
    login, _, server = host.rpartition("@")
    _, colon, port = server.partition(":")
    is_cut = "@" in path and colon and not port.isdigit()
    return rest.rpartition("@")[0] if ":" in login or is_cut else ""
