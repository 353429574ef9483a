"""Measures of a server in the form that Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

__all__ = ["Metrics"]

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """requests: by ability and status. seconds: from the arrival of a request to its answer. queued: texts that wait.
    together: texts of a batch. restarts: of the process that computes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self.requests = Counter("lit_requests", "Answered requests", ["ability", "status"], registry=registry)
        self.seconds = Histogram(
            "lit_request_seconds", "Seconds to an answer", ["ability"], buckets=SECONDS, registry=registry
        )
        self.queued = Gauge("lit_queued_texts", "Texts that wait", registry=registry)
        self.together = Histogram("lit_batch_texts", "Texts of a batch", buckets=TEXTS, registry=registry)
        self.restarts = Counter("lit_worker_restarts", "Restarts of the process that computes", registry=registry)
