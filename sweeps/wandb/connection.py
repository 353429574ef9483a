"""Whether W&B can be used: a key, a host that answers, and a host that accepts the key."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from lit_transformers.config import ConfigError
from lit_transformers.printing.error_lines import first_line
from lit_transformers.wandb_target import WandbTarget

__all__ = ["has_key", "require_connection"]

SECONDS = 10.0
"""How long the host may take to answer."""
KEY_VARIABLE, TOKEN_VARIABLE = "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"
VIEWER = "query Viewer { viewer { id } }"
"""Asks who the key belongs to: nobody, if the host does not know it."""
LATER = "or take --wandb offline, and send the runs later: wandb sync RUNS/*/wandb/offline-run-*"
OPTION = "--wandb online"


def has_key() -> bool:
    """Whether wandb has credentials for its host, as its own lookup tells. The key is not printed or stored."""
    return bool(os.environ.get(TOKEN_VARIABLE)) or bool(_key(_settings()))


def require_connection(target: WandbTarget) -> None:
    """Checks, before runs are sent online, that there is a key and that the host of wandb's settings accepts it.

    Does nothing for runs that are not sent, or not at once. A connection that was there is not checked again by this
    process. Raises ConfigError that names the way out.
    """
    if target.mode != "online":
        return
    settings = _settings()
    host, key = settings.base_url.rstrip("/"), _key(settings)
    if not key and not os.environ.get(TOKEN_VARIABLE):
        raise ConfigError(f"there is no key for {host}; log in: wandb login, {LATER}", OPTION)
    _require_accepted(host, key)


@cache
def _require_accepted(host: str, key: str | None) -> None:
    import requests

    try:
        # An identity token is exchanged by wandb itself, so that no more is known of it than that the host answers.
        answer = requests.post(
            f"{host}/graphql", json={"query": VIEWER}, auth=("api", key) if key else None, timeout=SECONDS
        )
        content: Any = answer.json() if answer.ok else None
    except requests.RequestException as error:
        raise ConfigError(f"{host} cannot be reached: {_cause(error)}; connect, {LATER}", OPTION) from None
    if not answer.ok and answer.status_code not in (401, 403):
        raise ConfigError(f"{host} answers with status {answer.status_code}; try again, {LATER}", OPTION)
    viewer = (content.get("data") or {}).get("viewer") if isinstance(content, dict) else None
    if key and not viewer:
        raise ConfigError(f"{host} does not accept the key; log in again: wandb login --relogin, {LATER}", OPTION)


def _settings() -> Any:
    import wandb

    return wandb.setup(wandb.Settings(silent=True)).settings


def _key(settings: Any) -> str | None:
    """Returns the key by wandb's own lookup: which host ``wandb login`` writes to depends on its version."""
    if stated := settings.api_key or os.environ.get(KEY_VARIABLE):
        return str(stated)
    try:
        from wandb.sdk.lib.wbauth import read_netrc_auth
    except ImportError:  # an older wandb, whose host has one name
        from requests.utils import get_netrc_auth

        credentials = get_netrc_auth(settings.base_url)
        return credentials[1] if credentials else None
    from wandb.errors import AuthenticationError

    try:
        return read_netrc_auth(host=settings.base_url)
    except AuthenticationError as error:
        raise ConfigError(f"the key of wandb login is none: {first_line(error)}; log in again", "wandb") from None


def _cause(error: BaseException) -> str:
    """Returns the cause of an error of the HTTP library, in one line."""
    text = str(error)
    for sign, cause in (
        ("NameResolution", "its name is not known here"),
        ("Connection refused", "connection refused"),
        ("timed out", f"no answer within {SECONDS:.0f} s"),
        ("CERTIFICATE", "its certificate is not trusted"),
        ("Expecting value", "it does not answer as W&B does"),
    ):
        if sign in text:
            return cause
    return first_line(error)
