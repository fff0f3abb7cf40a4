"""AsyncClient: the methods of Client for asyncio. A client belongs to one event loop."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Optional, Sequence, cast

import grpc.aio

from foxserve_client import methods
from foxserve_client.channel import Tls, call_metadata, channel_options
from foxserve_client.errors import fox_errors
from foxserve_client.fox.v1 import inference_pb2, info_pb2, tokenizer_pb2
from foxserve_client.methods import Method, Request, Response
from foxserve_client.requests import (GenerateOptions, Messages, Prompt, ScoreOptions,
                                      TextOrIds, generate_request, score_request)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient:
    """Arguments are as in Client. Make it while the event loop runs that awaits its methods."""

    def __init__(self, target: str = "127.0.0.1:50051", *, token: Optional[str] = None,
                 tls: Optional[Tls] = None, timeout: Optional[float] = None,
                 max_attempts: int = 5) -> None:
        options = channel_options(max_attempts, tls)
        self._channel: Any = (grpc.aio.insecure_channel(target, options) if tls is None else
                              grpc.aio.secure_channel(target, tls.credentials(), options))
        self._metadata = call_metadata(token)
        self._timeout = timeout

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                       trace: Optional[TracebackType]) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel, which ends running calls."""
        await self._channel.close()

    async def generate(self, prompt: Prompt, *, timeout: Optional[float] = None,
                       **options: Unpack[GenerateOptions]) -> inference_pb2.GenerateResponse:
        """A whole answer; text is in completions[0].text."""
        return await self._call(methods.GENERATE, generate_request(prompt, options), timeout)

    async def stream(self, prompt: Prompt, *, timeout: Optional[float] = None,
                     **options: Unpack[GenerateOptions]
                     ) -> AsyncIterator[inference_pb2.GenerateDelta]:
        """The answer as it comes. Leaving the loop ends the request in the server."""
        method = methods.GENERATE_STREAM
        call = self._channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)(
                generate_request(prompt, options), timeout=self._seconds(timeout),
                metadata=self._metadata)
        try:
            with fox_errors():
                async for event in call:
                    yield event
        finally:
            call.cancel()

    async def stream_text(self, prompt: Prompt, *, timeout: Optional[float] = None,
                          **options: Unpack[GenerateOptions]) -> AsyncIterator[str]:
        """The text of one answer (n = 1) as it comes."""
        async for event in self.stream(prompt, timeout=timeout, **options):
            text = event.prompt.text + event.delta.text  # of the prompt, with echo
            if text:
                yield text

    def chat(self, messages: Messages, *, timeout: Optional[float] = None,
             **options: Unpack[GenerateOptions]) -> AsyncIterator[str]:
        """The text of the answer to a conversation, as it comes."""
        return self.stream_text(messages, timeout=timeout, **options)

    async def score(self, prompt: TextOrIds, *, timeout: Optional[float] = None,
                    **options: Unpack[ScoreOptions]) -> inference_pb2.ScoreResponse:
        """Log-probabilities of a text or of ids."""
        return await self._call(methods.SCORE, score_request(prompt, options), timeout)

    async def abort(self, *request_ids: str, timeout: Optional[float] = None) -> list[str]:
        """Ends running requests; returns the ids of the requests that it ended."""
        request = inference_pb2.AbortRequest(request_ids=request_ids)
        return list((await self._call(methods.ABORT, request, timeout)).aborted)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True,
                       timeout: Optional[float] = None) -> list[int]:
        """Ids of a text."""
        request = tokenizer_pb2.TokenizeRequest(text=text, add_special_tokens=add_special_tokens)
        return list((await self._call(methods.TOKENIZE, request, timeout)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True,
                         timeout: Optional[float] = None) -> str:
        """Text of ids."""
        request = tokenizer_pb2.DetokenizeRequest(token_ids=token_ids,
                                                  skip_special_tokens=skip_special_tokens)
        return (await self._call(methods.DETOKENIZE, request, timeout)).text

    async def server_info(self, *, timeout: Optional[float] = None) -> info_pb2.ServerInfo:
        """Version, device and limits."""
        return await self._call(methods.SERVER_INFO, info_pb2.GetServerInfoRequest(), timeout)

    async def model_info(self, *, timeout: Optional[float] = None) -> info_pb2.ModelInfo:
        """The model's shape and defaults."""
        return await self._call(methods.MODEL_INFO, info_pb2.GetModelInfoRequest(), timeout)

    async def load(self, *, timeout: Optional[float] = None) -> info_pb2.Load:
        """The server's load now: running and waiting requests, memory."""
        return await self._call(methods.LOAD, info_pb2.GetLoadRequest(), timeout)

    async def health(self, service: str = "", *, timeout: Optional[float] = None) -> bool:
        """True if the server, or the named service, is serving."""
        request = methods.HEALTH.request(value=service)
        return (await self._call(methods.HEALTH, request, timeout)).value == methods.SERVING

    def _seconds(self, timeout: Optional[float]) -> Optional[float]:
        return self._timeout if timeout is None else timeout

    async def _call(self, method: Method[Request, Response], request: Request,
                    timeout: Optional[float]) -> Response:
        call = self._channel.unary_unary(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        with fox_errors():
            return cast(Response, await call(request, timeout=self._seconds(timeout),
                                             metadata=self._metadata))
