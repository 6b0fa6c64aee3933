"""The common base of the server's interceptors: it wraps the handler of any method."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from types import MappingProxyType
from typing import Any, TypeAlias

import grpc

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Answer: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""Answers a call: takes its request, or the iterator over its requests."""
AnswerStream: TypeAlias = Callable[[Any, Context], AsyncIterator[Any]]
"""Answers a call with a stream of responses."""

_HANDLERS = MappingProxyType(
    {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
)
"""The function that makes a handler, by whether its requests and its responses come in streams."""


class Interceptor(grpc.aio.ServerInterceptor, ABC):
    """Wraps the function that answers each method.

    Attributes:
        reads_streams: whether the wrapped handler takes its requests from a stream, even where the method has only
            one request.
    """

    reads_streams = False

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the method's handler; a method that does not exist has no handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method, is_stream = str(handler_call_details.method), handler.request_streaming
        # The health service answers its Watch from a coroutine that writes the responses itself.
        behaviour = handler.unary_unary or handler.stream_unary or handler.unary_stream
        if behaviour is None:
            raise NotImplementedError(f"{method} streams requests and responses; no method of this project does")
        wrapped: Any
        if inspect.isasyncgenfunction(behaviour):
            wrapped = self.wrap_stream(method, behaviour, is_stream)
        else:
            wrapped = self.wrap(method, behaviour, is_stream)
        make: Any = _HANDLERS[is_stream or self.reads_streams, handler.response_streaming]
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    @abstractmethod
    def wrap(self, method: str, answer: Answer, is_stream: bool) -> Answer:
        """Return a function that answers the method in place of `answer`.

        Args:
            method: the path of the method.
            answer: the function that answers the method without this interceptor.
            is_stream: whether `answer` takes an iterator over requests.
        """

    @abstractmethod
    def wrap_stream(self, method: str, answer: AnswerStream, is_stream: bool) -> AnswerStream:
        """Return an asynchronous generator that answers the method in place of `answer`, which is one; see `wrap`."""
