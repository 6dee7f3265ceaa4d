"""A collector of OpenTelemetry traces: a real HTTP server that takes OTLP and keeps the spans."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class TraceCollector:
    """Listens on a free port until it is closed."""

    def __init__(self):
        self.spans = []
        self.resources = []
        self.paths = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, self.headers["Content-Type"], body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path, kind, body):
        assert kind == "application/x-protobuf"
        self.paths.add(path)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            self.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def attributes(holder):
    """Name -> value of a span or a resource."""
    found = {}
    for entry in holder.attributes:
        value = getattr(entry.value, entry.value.WhichOneof("value"))
        found[entry.key] = [item.string_value for item in value.values] if hasattr(value, "values") else value
    return found
