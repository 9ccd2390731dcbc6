"""The OpenAPI document of a server: its addresses, what they take and what they answer."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute, Route

from gptoss_jax.openai_api.body_schema import body_schema

if TYPE_CHECKING:
    from gptoss_jax.serve.settings import ServerSettings

Json = dict[str, Any]

_STATUSES = {
    400: "a field is wrong, or the prompt is too long",
    401: "no valid API key",
    404: "there is nothing of that name",
    409: "it is not in a state in which that can be done",
    413: "the body is too long",
    422: "the body is no JSON object or form, or lacks what it must have",
    429: "the server is full: the header Retry-After says when to try again",
    500: "the engine failed on this request",
    503: "the engine has stopped, or is not ready",
}
_BODY = (400, 404, 413, 422, 429, 500, 503)
_NAMED = (404, 500, 503)
_PAGES = (400, 404, 500)


def openapi_document(routes: Iterable[BaseRoute], settings: ServerSettings) -> Json:
    """The document of those addresses that are served. The page's files are no part of it."""
    served: dict[str, set[str]] = {}
    for route in routes:
        if isinstance(route, Route):
            path = route.path.replace(":path}", "}")
            served.setdefault(path, set()).update((route.methods or set()) - {"HEAD"})
    paths = {
        path: {
            method.lower(): operation for method, operation in operations.items() if method in served[path]
        }
        for path, operations in _paths().items()
        if path in served
    }
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "gptoss-jax",
            "version": importlib.metadata.version("gptoss-jax"),
            "description": "OpenAI's Responses and Chat Completions APIs, files and batches. Unknown fields "
            "of bodies are ignored.",
        },
        "paths": paths,
        "components": {"schemas": _SCHEMAS | _bodies()},
    }
    if settings.api_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _operation(
    name: str,
    summary: str,
    content: Json,
    statuses: Sequence[int] = (),
    *,
    parameters: Sequence[Json] = (),
    body: Json | None = None,
) -> Json:
    responses: Json = {"200": {"description": "the answer", "content": content}}
    for status in sorted({*statuses, 401}):
        responses[str(status)] = {"description": _STATUSES[status], "content": _json(_ref("Error"))}
    operation: Json = {"operationId": name, "summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _in_query(name: str, description: str, **schema: Any) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_ID = _in_path("id")
_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}
_AFTER = _in_query("after", "behind the one of this id", type="string")
_PAGE = (_in_query("limit", "how many, at most", type="integer", minimum=1, maximum=100), _AFTER)
_LONG_PAGE = (_in_query("limit", "how many, at most", type="integer", minimum=1, maximum=10_000), _AFTER)
_ORDER = _in_query("order", "by age", type="string", enum=["asc", "desc"])


def _paths() -> dict[str, dict[str, Json]]:
    """Every address that there can be: method → operation."""
    form = {"multipart/form-data": {"schema": _ref("FileUpload")}}
    return {
        "/v1/chat/completions": {
            "POST": _operation(
                "createChatCompletion",
                "Answers a chat; as events where stream is true.",
                {**_json(_ref("ChatCompletion")), **_EVENTS},
                _BODY,
                body=_json(_ref("ChatBody")),
            )
        },
        "/v1/responses": {
            "POST": _operation(
                "createResponse",
                "Answers items; as events where stream is true.",
                {**_json(_ref("Response")), **_EVENTS},
                _BODY,
                body=_json(_ref("ResponsesBody")),
            )
        },
        "/v1/responses/{id}": {
            "GET": _operation(
                "getResponse",
                "A stored response, or its events.",
                {**_json(_ref("Response")), **_EVENTS},
                (400, *_NAMED),
                parameters=[
                    _ID,
                    _in_query("stream", "true for its events", type="string", enum=["true", "false"]),
                    _in_query("starting_after", "the number of an event", type="integer", minimum=0),
                ],
            ),
            "DELETE": _operation(
                "deleteResponse", "Forgets a response.", _json(_ref("Deleted")), _NAMED, parameters=[_ID]
            ),
        },
        "/v1/responses/{id}/input_items": {
            "GET": _operation(
                "listInputItems",
                "The items of its request.",
                _json(_ref("List")),
                _PAGES,
                parameters=[_ID, *_PAGE, _ORDER],
            )
        },
        "/v1/responses/{id}/cancel": {
            "POST": _operation(
                "cancelResponse",
                "Ends a response that is made in the background.",
                _json(_ref("Response")),
                (400, *_NAMED),
                parameters=[_ID],
            )
        },
        "/v1/harmony/tokens": {
            "POST": _operation(
                "listTokens",
                "The prompt of a body of either API, as tokens.",
                _json(_ref("Tokens")),
                _BODY,
                body=_json({"anyOf": [_ref("ChatBody"), _ref("ResponsesBody")]}),
            )
        },
        "/v1/files": {
            "GET": _operation(
                "listFiles",
                "The files.",
                _json(_ref("List")),
                _PAGES,
                parameters=[_in_query("purpose", "only those of it", type="string"), *_LONG_PAGE, _ORDER],
            ),
            "POST": _operation("createFile", "Takes a file.", _json(_ref("File")), _BODY, body=form),
        },
        "/v1/files/{id}": {
            "GET": _operation("getFile", "A file.", _json(_ref("File")), _NAMED, parameters=[_ID]),
            "DELETE": _operation(
                "deleteFile", "Forgets a file.", _json(_ref("Deleted")), (400, 409, *_NAMED), parameters=[_ID]
            ),
        },
        "/v1/files/{id}/content": {
            "GET": _operation(
                "downloadFile",
                "What is in a file.",
                {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
                _NAMED,
                parameters=[_ID],
            )
        },
        "/v1/batches": {
            "GET": _operation(
                "listBatches", "The batches.", _json(_ref("List")), _PAGES, parameters=[*_PAGE, _ORDER]
            ),
            "POST": _operation(
                "createBatch",
                "Begins a batch.",
                _json(_ref("Batch")),
                _BODY,
                body=_json(_ref("BatchBody")),
            ),
        },
        "/v1/batches/{id}": {
            "GET": _operation("getBatch", "A batch.", _json(_ref("Batch")), _NAMED, parameters=[_ID])
        },
        "/v1/batches/{id}/cancel": {
            "POST": _operation(
                "cancelBatch", "Ends a batch.", _json(_ref("Batch")), (400, 409, *_NAMED), parameters=[_ID]
            )
        },
        "/v1/models": {"GET": _operation("listModels", "The one model.", _json(_ref("List")), (500,))},
        "/v1/models/{model}": {
            "GET": _operation(
                "getModel", "The model.", _json(_ref("Model")), _NAMED, parameters=[_in_path("model")]
            )
        },
        "/health": {
            "GET": _operation("getHealth", "Whether requests can be answered.", _json(_ref("Health")), (503,))
        },
        "/ready": {"GET": _operation("getReady", "Whether they are at once.", _json(_ref("Health")), (503,))},
        "/metrics": {
            "GET": _operation(
                "getMetrics",
                "Figures in Prometheus' form.",
                {"text/plain": {"schema": {"type": "string"}}},
                (500,),
            )
        },
        "/openapi.json": {
            "GET": _operation("getOpenapi", "This document.", _json({"type": "object"}), (500,))
        },
        "/": {
            "GET": _operation(
                "getPage", "A page to chat with.", {"text/html": {"schema": {"type": "string"}}}
            )
        },
    }


def _object(required: str, **properties: Json) -> Json:
    return {"type": "object", "required": required.split(), "properties": properties}


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_NULL_OR_TEXT = {"type": ["string", "null"]}
_ITEMS = {"type": "array", "items": {"type": "object"}}

_SCHEMAS: Json = {
    "Error": _object(
        "error",
        error=_object(
            "message type param code", message=_TEXT, type=_TEXT, param=_NULL_OR_TEXT, code=_NULL_OR_TEXT
        ),
    ),
    "ChatCompletion": _object(
        "id object created model choices usage",
        id=_TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=_TEXT,
        choices={
            "type": "array",
            "minItems": 1,
            "items": _object(
                "index message logprobs finish_reason",
                index=_COUNT,
                message=_object("role content", role={"const": "assistant"}, content=_NULL_OR_TEXT),
                finish_reason={"enum": ["stop", "length", "tool_calls"]},
            ),
        },
        usage=_object(
            "prompt_tokens completion_tokens total_tokens",
            prompt_tokens=_COUNT,
            completion_tokens=_COUNT,
            total_tokens=_COUNT,
        ),
    ),
    "Response": _object(
        "id object created_at status error incomplete_details model output usage",
        id=_TEXT,
        object={"const": "response"},
        created_at=_COUNT,
        status={"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
        model=_TEXT,
        output={"type": "array", "items": _object("type id", type=_TEXT, id=_TEXT)},
        usage={
            "anyOf": [
                {"type": "null"},
                _object(
                    "input_tokens output_tokens total_tokens",
                    input_tokens=_COUNT,
                    output_tokens=_COUNT,
                    total_tokens=_COUNT,
                ),
            ]
        },
    ),
    "Tokens": _object(
        "object model count hidden_messages messages",
        object={"const": "harmony.tokens"},
        model=_TEXT,
        count=_COUNT,
        hidden_messages=_COUNT,
        messages=_ITEMS,
    ),
    "Model": _object(
        "id object created owned_by", id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT
    ),
    "List": _object("object data", object={"const": "list"}, data=_ITEMS),
    "Deleted": _object("id object deleted", id=_TEXT, object=_TEXT, deleted={"const": True}),
    "Health": _object("status", status={"const": "ok"}),
    "File": _object(
        "id object bytes created_at filename purpose",
        id=_TEXT,
        object={"const": "file"},
        bytes=_COUNT,
        created_at=_COUNT,
        filename=_TEXT,
        purpose=_TEXT,
    ),
    "FileUpload": _object(
        "file purpose", file={"type": "string", "format": "binary"}, purpose={"const": "batch"}
    ),
    "Batch": _object(
        "id object endpoint input_file_id status created_at",
        id=_TEXT,
        object={"const": "batch"},
        endpoint=_TEXT,
        input_file_id=_TEXT,
        status=_TEXT,
        created_at=_COUNT,
    ),
    "BatchBody": _object(
        "input_file_id endpoint completion_window",
        input_file_id=_TEXT,
        endpoint={"enum": ["/v1/chat/completions", "/v1/responses"]},
        completion_window={"const": "24h"},
        metadata={"type": ["object", "null"], "additionalProperties": _TEXT},
    ),
}


def _bodies() -> Json:
    return {"ChatBody": body_schema("chat"), "ResponsesBody": body_schema("responses")}
