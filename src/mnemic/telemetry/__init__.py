"""Signals for operators: OpenTelemetry, Prometheus and structured logs, all fed by `calls`."""

from .calls import capture_content
from .logs import JSONFormatter
from .prometheus import register_prometheus

__all__ = ["JSONFormatter", "capture_content", "register_prometheus"]
