"""FoxError: a call that failed, in one line."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import grpc


class FoxError(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """str() is "CODE: message"; code(), details() and trailing_metadata() are as in gRPC."""

    def __init__(self, code: Any, message: str, trailing_metadata: Any = ()) -> None:
        super().__init__(f"{code.name}: {message}")
        self._code, self._message, self._trailing_metadata = code, message, trailing_metadata

    def code(self) -> Any:
        """The grpc.StatusCode."""
        return self._code

    def details(self) -> str:
        """The server's message, which names the field that is wrong."""
        return self._message

    def trailing_metadata(self) -> Any:
        """Pairs of name and value; a RESOURCE_EXHAUSTED has retry-after-ms."""
        return self._trailing_metadata


@contextlib.contextmanager
def fox_errors() -> Iterator[None]:
    """A context that raises gRPC's errors as FoxError."""
    try:
        yield
    except grpc.RpcError as error:
        raise FoxError(error.code(), error.details() or "",
                       error.trailing_metadata() or ()) from None
