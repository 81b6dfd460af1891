"""Errors of the endpoint, in OpenAI's format."""

from __future__ import annotations

from typing import Any


class BadRequest(Exception):
    """A request that is refused: one line, which begins with the field's name where one is to blame."""

    def __init__(self, message: str, field: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.status = status
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The body of the reply."""
        return error_body(str(self), self.status, self.field, self.code)


def error_body(message: str, status: int, field: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Returns the body of a reply that refuses."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}
