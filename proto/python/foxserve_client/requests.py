"""Requests from keyword arguments. The .proto files list ranges, defaults and errors of each field;
the server chooses the fields that are not given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Sequence, TypedDict, Union, cast

from google.protobuf.message import Message

from foxserve_client.fox.v1 import acp_pb2, inference_pb2

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

TextOrIds: "TypeAlias" = Union[str, Sequence[int]]
# Each is {"role": "user", "content": "..."}; an assistant's may have tool_calls with "name" and
# "arguments".
Messages: "TypeAlias" = Sequence[Mapping[str, Any]]
Prompt: "TypeAlias" = Union[TextOrIds, Messages]


class RequestOptions(TypedDict, total=False):
    """Options of every request that goes to the model."""

    request_id: str
    model: str
    priority: int
    queue_timeout_ms: int
    acp: acp_pb2.AcpOptions
    add_special_tokens: bool
    truncate_prompt_tokens: int
    logprob_token_ids: Iterable[int]
    perf_metrics: bool
    acp_stats: bool
    logprobs: int


class ScoreOptions(RequestOptions, total=False):
    """Options of Score."""


class GenerateOptions(RequestOptions, total=False):
    """Options of Generate and GenerateStream: the fields of Sampling, Stopping, Output and
    ChatMessages."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    n: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Iterable[int]
    json_schema: str
    regex: str
    grammar: str
    choice: Iterable[str]
    json_object: bool
    max_tokens: int
    min_tokens: int
    stop: Union[str, Iterable[str]]
    stop_token_ids: Iterable[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    text: bool
    token_ids: bool
    prompt_logprobs: int
    echo: bool
    skip_special_tokens: bool
    stream_interval: int
    acp_windows: bool
    add_generation_prompt: bool
    continue_final_message: bool
    tools: Iterable[str]
    call_required: bool
    call_name: str
    one_call: bool
    enable_thinking: bool


def generate_request(prompt: Prompt, options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """Makes a request. TypeError for an unknown option; TypeError or ValueError for a value of
    another type."""
    request = inference_pb2.GenerateRequest()
    if isinstance(next(iter(prompt), None), Mapping):
        for message in cast(Messages, prompt):
            request.messages.turns.add(**message)
    else:
        _set_prompt(request, cast(TextOrIds, prompt))
    _set(options, (request.sampling, request.stopping, request.output, request, request.messages))
    return request


def score_request(prompt: TextOrIds, options: ScoreOptions) -> inference_pb2.ScoreRequest:
    """Makes a request; raises as generate_request does."""
    request = inference_pb2.ScoreRequest()
    _set_prompt(request, prompt)
    _set(options, (request,))
    return request


def _set_prompt(request: inference_pb2.GenerateRequest | inference_pb2.ScoreRequest,
                prompt: TextOrIds) -> None:
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)


def _set(options: Mapping[str, Any], parts: tuple[Message, ...]) -> None:
    """Sets each option in the first of `parts` that has a field of its name."""
    for name, value in options.items():
        part = next((p for p in parts if name in p.DESCRIPTOR.fields_by_name), None)
        if part is None:
            raise TypeError(f"unexpected keyword argument {name!r}")
        if name == "stop" and isinstance(value, str):
            value = [value]
        if isinstance(value, Message):
            getattr(part, name).CopyFrom(value)
        elif isinstance(value, Mapping):
            getattr(part, name).update(value)
        elif isinstance(value, Iterable) and not isinstance(value, str):
            getattr(part, name).extend(value)
        else:
            setattr(part, name, value)
