"""The OpenAI bodies as vLLM 0.32 reads and writes them, for a model whose every token is a word of four bytes or so."""

import json
import random
import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

BYTES_PER_TOKEN = 4
"""Of prompts given as text."""
EOS_LENGTHS = (5.0, 0.8)
"""Lognormal (mu, sigma) of the tokens after which the model stops by itself, where the request lets it."""
DEFAULT_MAX_TOKENS = 16
WORDS = (
    " the",
    " engine",
    " queue",
    " builds",
    " and",
    " drains",
    " while",
    " tokens",
    " keep",
    " their",
    " pace",
    ",",
)


class RequestError(Exception):
    """A request that vLLM refuses: HTTP status, type, message and the parameter at fault."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, kind, message, param)


def error_body(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    """An error as vLLM words it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Length in tokens, and the identity of each full block: a digest of all tokens up to its end."""

    tokens: int
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Generation:
    """One API request, checked."""

    model: str
    prompts: Sequence[Prompt]
    n: int
    max_tokens: int
    ignore_eos: bool
    min_tokens: int
    chat: bool
    stream: bool
    include_usage: bool

    def output(self) -> tuple[int, str]:
        """Tokens that one sequence will have, and why it will end."""
        if self.ignore_eos:
            return self.max_tokens, "length"
        drawn = max(1, self.min_tokens, round(random.lognormvariate(*EOS_LENGTHS)))
        return (drawn, "stop") if drawn < self.max_tokens else (self.max_tokens, "length")


def _prompt(prompt: str | Sequence[int], block_size: int) -> Prompt:
    if isinstance(prompt, str):
        content, width = prompt.encode(), BYTES_PER_TOKEN
    else:
        content, width = array("q", prompt).tobytes(), 8
    tokens = -(-len(content) // width)
    digest, keys, block = blake2b(digest_size=16), [], block_size * width
    for start in range(0, tokens // block_size * block, block):
        digest.update(content[start : start + block])
        keys.append(digest.digest())
    return Prompt(tokens, keys)


def _prompts(body: Mapping[str, Any], block_size: int, *, chat: bool) -> list[Prompt]:
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
            raise RequestError(400, "BadRequestError", "messages must be a list of at least one message", "messages")
        given: Any = "".join(f"{message.get('content') or ''}\n" for message in messages)
    else:
        given = body.get("prompt")
    several = isinstance(given, list) and bool(given) and isinstance(given[0], str | list)
    try:
        prompts = [_prompt(prompt, block_size) for prompt in (given if several else [given])]
    except (TypeError, OverflowError):
        raise RequestError(400, "BadRequestError", "prompt must be text or token numbers", "prompt") from None
    if not all(prompt.tokens for prompt in prompts):
        raise RequestError(400, "BadRequestError", "The decoder prompt cannot be empty", "prompt")
    return prompts


def _integer(body: Mapping[str, Any], names: Sequence[str], default: int, least: int) -> int:
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            message = f"{name} must be at least {least}, got {value}. (parameter={name}, value={value})"
            raise RequestError(400, "BadRequestError", message, name)
        return value
    return default


def read_generation(content: bytes, *, chat: bool, models: Sequence[str], block_size: int, longest: int) -> Generation:
    """Check a request body.

    Raises:
        RequestError: vLLM would refuse it.
    """
    try:
        body = json.loads(content)
    except ValueError as error:
        raise RequestError(400, "Bad Request", f"JSON decode error: {error}", "body") from None
    if not isinstance(body, dict):
        raise RequestError(400, "Bad Request", "the body must be an object", "body")
    model = body.get("model", models[0])
    if model not in models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(models)}."
        raise RequestError(404, "NotFoundError", message, "model")
    prompts = _prompts(body, block_size, chat=chat)
    room = longest - max(prompt.tokens for prompt in prompts)
    default = room if chat else min(DEFAULT_MAX_TOKENS, room)
    max_tokens = _integer(body, ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",), default, 1)
    if max_tokens > room or room < 1:
        message = f"prompt and max_tokens={max_tokens} cannot be greater than max_model_len={longest} together."
        raise RequestError(400, "BadRequestError", message, "max_tokens")
    options = body.get("stream_options")
    return Generation(
        model=model,
        prompts=prompts,
        n=_integer(body, ("n",), 1, 1),
        max_tokens=max_tokens,
        ignore_eos=bool(body.get("ignore_eos")),
        min_tokens=_integer(body, ("min_tokens",), 0, 0),
        chat=chat,
        stream=bool(body.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


class Answer:
    """Writes the answer to one generation as its tokens come."""

    def __init__(self, generation: Generation, created: int) -> None:
        self._generation = generation
        sequences = len(generation.prompts) * generation.n
        self._tokens = [0] * sequences
        self._reasons: list[str | None] = [None] * sequences
        kind = "chat.completion" if generation.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if generation.chat else 'cmpl'}-{uuid.uuid4().hex[:16]}",
            "object": f"{kind}.chunk" if generation.chat and generation.stream else kind,
            "created": created,
            "model": generation.model,
        }
        self._lead = json.dumps(self._head, separators=(",", ":"))[:-1]
        self._tail = {True: _chat_choice, False: _text_choice}[generation.chat]

    @property
    def finished(self) -> bool:
        """Every sequence has a reason to have ended."""
        return None not in self._reasons

    @property
    def usage(self) -> dict[str, int]:
        """Tokens in and out; a prompt counts once however many sequences it has."""
        prompt, completion = sum(prompt.tokens for prompt in self._generation.prompts), sum(self._tokens)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def add(self, sequence: int, tokens: int, finish_reason: str | None) -> None:
        """Take an output that is not streamed."""
        self._tokens[sequence] += tokens
        self._reasons[sequence] = finish_reason

    def chunk(self, sequence: int, tokens: int, finish_reason: str | None) -> str:
        """Take an output and write it as a server-sent event, with the role before the first of a chat."""
        before = self._tokens[sequence]
        self.add(sequence, tokens, finish_reason)
        event = f"data: {self._lead},{self._tail(sequence, _text(before, tokens), finish_reason)}}}\n\n"
        if self._generation.chat and not before:
            role = f'"choices":[{{"index":{sequence},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            event = f'data: {self._lead},{role}"finish_reason":null}}]}}\n\n{event}'
        return event

    def closing(self) -> str:
        """The end of a stream."""
        usage = ""
        if self._generation.include_usage:
            usage = f"data: {json.dumps(self._head | {'choices': [], 'usage': self.usage}, separators=(',', ':'))}\n\n"
        return f"{usage}data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = []
        for sequence, (tokens, reason) in enumerate(zip(self._tokens, self._reasons, strict=True)):
            text = _text(0, tokens)
            said = {"message": {"role": "assistant", "content": text}} if self._generation.chat else {"text": text}
            choices.append({"index": sequence, **said, "logprobs": None, "finish_reason": reason, "stop_reason": None})
        return self._head | {"choices": choices, "usage": self.usage}


def _text(start: int, tokens: int) -> str:
    return "".join(WORDS[position % len(WORDS)] for position in range(start, start + tokens))


def _text_choice(sequence: int, text: str, reason: str | None) -> str:
    end = f'"{reason}"' if reason else "null"
    return (
        f'"choices":[{{"index":{sequence},"text":"{text}","logprobs":null,"finish_reason":{end},"stop_reason":null}}]'
    )


def _chat_choice(sequence: int, text: str, reason: str | None) -> str:
    end = f'"{reason}"' if reason else "null"
    return f'"choices":[{{"index":{sequence},"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{end}}}]'
