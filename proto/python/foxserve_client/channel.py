"""The connection of a client: encryption, the token, deadlines, retries."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, Optional, Union

import grpc

Path = Union[str, "os.PathLike[str]"]

_MIB = 1 << 20
_RETRIED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


@dataclasses.dataclass(frozen=True)
class Tls:
    """Encryption. All files are PEM; the paths are read when a client is made.

    ca: authorities of the server's certificate; None: the library's list.
    cert, key: a certificate of our own, for a server that asks for one.
    server_name: the name in the server's certificate, if it is not the target's.
    """

    ca: Optional[Path] = None
    cert: Optional[Path] = None
    key: Optional[Path] = None
    server_name: Optional[str] = None

    def credentials(self) -> Any:
        """Reads the files; returns the credentials of a channel."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert needs key, and the other way")
        ca, cert, key = (None if path is None else pathlib.Path(path).read_bytes()
                         for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


def channel_options(max_attempts: int, tls: Optional[Tls]) -> list[tuple[str, Any]]:
    """The options of a channel that makes up to `max_attempts` (1 to 5) attempts of a call.

    gRPC retries after RESOURCE_EXHAUSTED when the server says so (grpc-retry-pushback-ms), after
    UNAVAILABLE in 0.1 s, then twice as long each time. The deadline holds for all attempts
    together. A stream that has begun is never tried again, so no token comes twice.
    """
    if not 1 <= max_attempts <= 5:
        raise ValueError("max_attempts: 1 to 5")
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", 256 * _MIB),
        ("grpc.per_rpc_retry_buffer_size", 16 * _MIB),
        ("grpc.keepalive_time_ms", 60000),
        ("grpc.keepalive_timeout_ms", 20000),
    ]
    if max_attempts > 1:
        policy = {"maxAttempts": max_attempts, "initialBackoff": "0.1s", "maxBackoff": "5s",
                  "backoffMultiplier": 2, "retryableStatusCodes": _RETRIED}
        config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
        options.append(("grpc.service_config", json.dumps(config)))
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def call_metadata(token: Optional[str]) -> list[tuple[str, str]]:
    """The metadata of each call: the token."""
    return [] if token is None else [("authorization", f"Bearer {token}")]
