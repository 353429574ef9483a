"""Google's storage-testbench as gcsfs finds the service itself: it accepts lines of an upload that end without a
carriage return, as the service does and the testbench does not.

    gunicorn "gcs_server:run()"
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

Respond = Callable[..., Any]


def run() -> Callable[[dict[str, Any], Respond], Iterable[bytes]]:
    """Returns the application."""
    import testbench

    application = testbench.run()

    def respond(environ: dict[str, Any], start: Respond) -> Iterable[bytes]:
        if environ.get("CONTENT_TYPE", "").startswith("multipart/related"):
            body = with_carriage_returns(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        answer: Iterable[bytes] = application(environ, start)
        return answer

    return respond


def with_carriage_returns(body: bytes) -> bytes:
    """Returns an upload of metadata and content, whose content is as it was."""
    described, named, content = body.split(b"\n\n", 2)
    content, line, end = content.rpartition(b"\n")
    head = b"\n\n".join([described, named, b""]).replace(b"\n", b"\r\n")
    return head + content + line.replace(b"\n", b"\r\n") + end
