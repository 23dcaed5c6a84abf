"""A running server of the OpenAI API, such as vLLM's or SGLang's: requests and answers."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from molprof.common.engine_settings import VLLM
from molprof.common.errors import MissingExtraError, RunError, UsageError
from molprof.common.text import shortened

LOCAL = ("127.0.0.1", "localhost", "::1")
SGLANG, OTHER = "sglang", "openai"
_ANSWER_S, _PROBE_S = 600, 5
_MOST_TEXT = 300
_KEY_HINT = "--api-key, which takes it from the environment variable OPENAI_API_KEY"


class RefusedError(RunError):
    """The server answered with an error; `status` is that of HTTP."""

    def __init__(self, message: str, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.status = status


class Server:
    """A server of vLLM or SGLang; or another one of the OpenAI API, which is timed and not recorded.

    Args:
        url: with the path before /v1, if there is one.
        hosts: names of machines that may be asked.
        model: one that it serves; None: its first.
        key: sent with each request, and shown nowhere.

    Raises:
        UsageError: the URL is none, or of another machine, or the server has no such model.
        RunError: nothing answers there.
    """

    def __init__(self, url: str, hosts: Sequence[str], model: str | None = None, key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"//{url}")
            name, secure = parts.hostname or "", parts.scheme == "https"
            port = parts.port or (443 if secure else 80)
        except ValueError:  # of a port or a name
            name = ""
        if not name or parts.scheme not in ("", "http", "https"):
            raise UsageError(f"{url!r} is no address of a server", hint="such as http://127.0.0.1:8000")
        self.is_local = name in LOCAL
        if not self.is_local and name not in hosts:
            raise UsageError(f"{name} is another machine", hint=f"--host {name}, if it is yours")
        self._address, self._secure, self._key = (name, port), secure, key
        self._prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        shown = f"[{name}]" if ":" in name else name
        self.url = f"{'https' if secure else 'http'}://{shown}:{port}{self._prefix}"
        models = self.ask("GET", "/v1/models")
        try:
            served = json.loads(models)["data"]
            self.models = [str(one["id"]) for one in served]
            self.roots = {str(one["id"]): str(one.get("root") or "") for one in served}  # where it has the models
            self.model = self.models[0] if model is None else model
        except (ValueError, LookupError, TypeError) as problem:
            raise RunError(f"{self.url} serves no model as vLLM and SGLang do", "is it the right port?") from problem
        self.check_model(self.model)
        self.kind, self.version = self._known()

    def _known(self) -> tuple[str, str]:
        """Return the server's program and its version, empty if unknown."""
        try:
            return VLLM, str(json.loads(self.ask("GET", "/version"))["version"])
        except (RunError, KeyError, TypeError, ValueError):
            pass
        try:
            self.ask("GET", "/get_model_info")
        except RunError:
            return OTHER, ""
        return SGLANG, ""

    def check_model(self, model: str, where: str = "") -> None:
        """Raise UsageError for a model that the server does not have."""
        if model not in self.models:
            raise UsageError(
                f"{where}{self.url} has no model {shortened(model)!r}", f"it has {', '.join(self.models[:10])}"
            )

    def fields(self, path: str) -> frozenset[str] | None:
        """Return the fields that its API has for a path; None: it does not describe them."""
        try:
            api = json.loads(self.ask("GET", "/openapi.json"))
            schema = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            return frozenset(api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"])
        except (RunError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def has(self, path: str) -> bool:
        """Return True if the server has a path, tested without a call: it refuses other methods there."""
        try:
            self.ask("OPTIONS", path)
        except RefusedError as problem:
            return problem.status != http.HTTPStatus.NOT_FOUND
        return True

    def is_there(self) -> bool:
        """Return True if the server still answers."""
        try:
            self.ask("GET", "/v1/models", limit_s=_PROBE_S)
        except RunError as problem:
            return isinstance(problem, RefusedError)
        return True

    def ask(self, method: str, path: str, body: object = None, limit_s: float = 60) -> bytes:
        """Send a request and return the answer. Raises RunError, also for a refusal."""
        with closing(self._sent(method, path, body, limit_s)) as connection:
            try:
                return self._answered(connection, path).read()
            except (OSError, http.client.HTTPException) as problem:
                raise RunError(f"{self.url}{path}: {problem or type(problem).__name__}") from problem

    def stream(self, path: str, body: object) -> Iterator[dict[str, Any]]:
        """Yield the events of an answer, streamed by the `openai` package as they are. Raises RunError."""
        import openai

        where = f"{self.url}{path}"
        options = {"follow_redirects": False, "headers": {} if self._key else {"Authorization": openai.Omit()}}
        try:
            yield from self.client.post(
                path.removeprefix("/v1"), body=body, cast_to=object, options=options, stream=True,
                stream_cls=openai.Stream[Any],
            )  # fmt: skip
        except openai.APIStatusError as problem:
            raise _refused(where, problem.status_code, problem.response.content, "") from problem
        except openai.APIConnectionError as problem:
            raise RunError(f"{where}: {problem.__cause__ or problem}") from problem
        except openai.APIError as problem:  # an event of the stream
            raise RefusedError(f"{where}: {shortened(str(problem), _MOST_TEXT)}", http.HTTPStatus.OK) from problem
        except ValueError as problem:
            raise RunError(f"{where}: an event is no JSON: {problem}") from problem

    @functools.cached_property
    def client(self) -> Any:
        """The client that sends the requests; it takes no proxy to a server of this machine. Raises UsageError."""
        try:
            import openai
        except ImportError as problem:
            raise MissingExtraError("openai", "serving", "sending requests") from problem
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self._key or "none",
            max_retries=0,
            timeout=_ANSWER_S,
            http_client=openai.DefaultHttpxClient(trust_env=not self.is_local),
        )

    def _sent(self, method: str, path: str, body: object, limit_s: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(*self._address, timeout=limit_s, context=context)
        else:
            connection = http.client.HTTPConnection(*self._address, timeout=limit_s)
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request(method, self._prefix + path, data, headers)
        except OSError as problem:
            raise RunError(f"no server answers at {self.url}: {problem}", hint="is it ready?") from problem
        return connection

    def _answered(self, connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        try:
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            raise RunError(f"{self.url}{path}: {problem or type(problem).__name__}") from problem
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise _refused(f"{self.url}{path}", answer.status, answer.read(), answer.reason)
        return answer


def _refused(where: str, status: int, answer: bytes, phrase: str) -> RefusedError:
    text = f"{where}: {status} {reason(answer) or phrase}"
    return RefusedError(text, status, _KEY_HINT if status in (401, 403) else None)


def reason(answer: str | bytes) -> str:
    """Return the error message of an answer, in one line."""
    text = answer if isinstance(answer, str) else answer.decode(errors="replace")
    try:
        text = str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = "" if text.lstrip().startswith("<") else text  # a page
    return shortened(" ".join(text.split()), _MOST_TEXT)
