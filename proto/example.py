#!/usr/bin/env python3
"""A client in Python: streams one completion, then prints its tokens and evicted pages.

    pip install grpcio grpcio-tools
    python3 proto/example.py "Once upon a time" --target 127.0.0.1:50051

It makes the message classes from the .proto files when it starts. A program of your own had better
make them once, as modules fox.v1.inference_pb2 and inference_pb2_grpc:

    python3 -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. \\
        fox/v1/acp.proto fox/v1/inference.proto
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))  # where fox/v1/*.proto are
fox, fox_grpc = grpc.protos_and_services("fox/v1/inference.proto")


def stream(target: str, prompt: str, max_tokens: int) -> None:
    """Prints the text as it comes; then usage and evicted pages, on standard error."""
    request = fox.GenerateRequest(
        text=prompt,
        sampling=fox.Sampling(temperature=0.8, top_p=0.95, seed=1),
        stopping=fox.Stopping(max_tokens=max_tokens, stop=["\n\n"]),
        output=fox.Output(acp_stats=True),
    )
    with grpc.insecure_channel(target) as channel:
        inference = fox_grpc.InferenceStub(channel)
        for event in inference.GenerateStream(request, timeout=60):
            kind = event.WhichOneof("event")
            if kind == "delta":
                print(event.delta.text, end="", flush=True)
            elif kind == "finish":
                usage, acp = event.finish.usage, event.finish.acp
                print()
                print(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, "
                      f"{acp.pages_evicted} of {acp.pages_allocated} pages evicted",
                      file=sys.stderr)


def main() -> int:
    """Parses the command line. Returns 1 if the server refuses or does not answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt")
    parser.add_argument("--target", default="127.0.0.1:50051")
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    try:
        stream(arguments.target, arguments.prompt, arguments.max_tokens)
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
