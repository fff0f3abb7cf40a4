"""A client of fox-server: completions, log-probabilities, tokens, state; sync and asyncio.

    from foxserve_client import Client

    with Client("127.0.0.1:50051") as client:
        for text in client.stream_text("Once upon a time", max_tokens=64):
            print(text, end="", flush=True)
        for text in client.chat([{"role": "user", "content": "Hello"}]):
            print(text, end="", flush=True)

foxserve_client.fox.v1 has the messages of the .proto files. Errors are FoxError, which is a
grpc.RpcError.
"""

from foxserve_client.asynchronous import AsyncClient
from foxserve_client.channel import Tls
from foxserve_client.errors import FoxError
from foxserve_client.requests import GenerateOptions, ScoreOptions
from foxserve_client.synchronous import Client

__all__ = ["AsyncClient", "Client", "FoxError", "GenerateOptions", "ScoreOptions", "Tls"]
