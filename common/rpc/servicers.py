"""Servicers made from the table of routes."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, TypeAlias

import grpc
from google.protobuf.message import Message as Request

from trilateral.common.rpc.codec import PACKAGE
from trilateral.common.rpc.interceptor import Context
from trilateral.common.rpc.routes import ROUTES, MessageRoute, Route


class Receiver(Protocol):
    """Takes the messages of jobs. Each method returns once the message may be acknowledged."""

    async def deliver(self, request: Request) -> None:
        """Take the message in a request."""
        ...

    async def deliver_stream(self, requests: AsyncIterator[Any]) -> None:
        """Take the messages in a stream of requests, each as it arrives."""
        ...


Servicer: TypeAlias = Any
"""A `Receiver` for a service that carries messages; for any other, an object with a method for each route's name."""


def add_services(server: grpc.aio.Server, servicers: Mapping[str, Servicer]) -> None:
    """Serve the methods of services.

    Args:
        server: where to serve them.
        servicers: the servicer of each service, by the name of the service.
    """
    for service, servicer in servicers.items():
        handlers = {route.method: _handler(route, servicer) for route in ROUTES if route.service == service}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", handlers)])


def _handler(route: Route, servicer: Servicer) -> "grpc.RpcMethodHandler[Any, Any]":
    coding = route.request.FromString, route.response.SerializeToString
    match route:
        case MessageRoute() if route.streams_requests:
            return grpc.stream_unary_rpc_method_handler(
                _receive_stream(route, servicer), route.chunk.FromString, route.response.SerializeToString
            )
        case MessageRoute():
            return grpc.unary_unary_rpc_method_handler(_receive(route, servicer), *coding)
    answer: Any = getattr(servicer, route.method)
    if route.streams_responses:
        return grpc.unary_stream_rpc_method_handler(answer, *coding)
    return grpc.unary_unary_rpc_method_handler(answer, *coding)


def _receive(route: MessageRoute, receiver: Receiver) -> Any:
    acknowledgement = route.response()

    async def receive(request: Request, context: Context) -> Request:
        await receiver.deliver(request)
        return acknowledgement

    return receive


def _receive_stream(route: MessageRoute, receiver: Receiver) -> Any:
    acknowledgement = route.response()

    async def receive(requests: AsyncIterator[Any], context: Context) -> Request:
        await receiver.deliver_stream(requests)
        return acknowledgement

    return receive
