"""The methods of fox.v1 and of the health service, with the types of their messages."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

from google.protobuf import wrappers_pb2
from google.protobuf.message import Message

from foxserve_client.fox.v1 import inference_pb2, info_pb2, tokenizer_pb2

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclasses.dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """A method: its full path on the wire and its messages."""

    path: str
    request: type[Request]
    response: type[Response]


GENERATE = Method("/fox.v1.Inference/Generate", inference_pb2.GenerateRequest,
                  inference_pb2.GenerateResponse)
GENERATE_STREAM = Method("/fox.v1.Inference/GenerateStream", inference_pb2.GenerateRequest,
                         inference_pb2.GenerateDelta)
SCORE = Method("/fox.v1.Inference/Score", inference_pb2.ScoreRequest, inference_pb2.ScoreResponse)
ABORT = Method("/fox.v1.Inference/Abort", inference_pb2.AbortRequest, inference_pb2.AbortResponse)
TOKENIZE = Method("/fox.v1.Tokenizer/Tokenize", tokenizer_pb2.TokenizeRequest,
                  tokenizer_pb2.TokenizeResponse)
DETOKENIZE = Method("/fox.v1.Tokenizer/Detokenize", tokenizer_pb2.DetokenizeRequest,
                    tokenizer_pb2.DetokenizeResponse)
SERVER_INFO = Method("/fox.v1.Info/GetServerInfo", info_pb2.GetServerInfoRequest,
                     info_pb2.ServerInfo)
MODEL_INFO = Method("/fox.v1.Info/GetModelInfo", info_pb2.GetModelInfoRequest, info_pb2.ModelInfo)
LOAD = Method("/fox.v1.Info/GetLoad", info_pb2.GetLoadRequest, info_pb2.Load)

# A HealthCheckRequest is one string in field 1, its response one enum in field 1: two well-known
# messages look the same on the wire, and no further package is needed.
HEALTH = Method("/grpc.health.v1.Health/Check", wrappers_pb2.StringValue, wrappers_pb2.Int32Value)
SERVING = 1
