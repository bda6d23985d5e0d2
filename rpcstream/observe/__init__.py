"""Counters of a server, a log with a limited number of lines, and spans for OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tracing import Tracing


def make_tracing(option: Any) -> Tracing | None:
    """What makes the spans that the option `tracing` of a server or client asks for; None for none.

    Raises:
        ImportError: the extra `opentelemetry` is not installed.
        TypeError: the option is neither a bool nor a TracerProvider.
    """
    if option is None or option is False:
        return None
    from .tracing import Tracing

    if isinstance(option, Tracing):
        return option
    if option is not True and not callable(getattr(option, "get_tracer", None)):
        raise TypeError(f"tracing is True, False or a TracerProvider of OpenTelemetry, got {type(option).__name__}")
    return Tracing(None if option is True else option)
