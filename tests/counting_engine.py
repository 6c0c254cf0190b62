"""A small engine as a process: 100 tokens a second, from a given total on. ``counting_engine.py PORT TOTAL``."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKENS_PER_SECOND = 100.0
STARTED = time.time()
LABELS = '{engine="0",model_name="tiny"}'


def exposition(total: float) -> str:
    """One busy engine whose one request never ends: each step is one token."""
    tokens = total + TOKENS_PER_SECOND * (time.time() - STARTED)
    values = {
        "vllm:num_requests_running": 1.0,
        "vllm:num_requests_waiting": 0.0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:num_preemptions_total": 0.0,
        "vllm:prompt_tokens_total": total + 10.0,
        "vllm:generation_tokens_total": tokens,
        "vllm:time_to_first_token_seconds_count": total + 1.0,
        "vllm:time_to_first_token_seconds_sum": total + 0.1,
        "vllm:inter_token_latency_seconds_count": tokens,
        "vllm:inter_token_latency_seconds_sum": tokens / TOKENS_PER_SECOND,
        "vllm:iteration_tokens_total_count": tokens,
        "vllm:iteration_tokens_total_sum": tokens,
    }
    lines = [f"{name}{LABELS} {value!r}" for name, value in values.items()]
    return "\n".join([*lines, f"process_start_time_seconds {STARTED!r}", ""])


def serve(port: int, total: float) -> None:
    """Serve until killed."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = exposition(total).encode() if self.path.startswith("/metrics") else b""
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


@contextlib.contextmanager
def engine(port: int, total: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    """Run it until the block ends, or until it is killed."""
    process = subprocess.Popen([sys.executable, __file__, str(port), str(total)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
