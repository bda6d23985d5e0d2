"""Handlers of pages in a module that worker processes can import."""

from __future__ import annotations

import os

from PIL import Image

from rpcstream.web import Html, HttpError, Request, Response, html
from rpcstream.wire.http_messages import problem


def process_id(name: str, request: Request) -> dict[str, object]:
    return {"name": name, "pid": os.getpid(), "agent": request.headers.get("user-agent")}


def page(name: str) -> Html:
    return html("<p>{name}", name=name)


def picture(side: int) -> Image.Image:
    return Image.new("RGB", (side, side), "red")


def refuse() -> None:
    raise HttpError(problem(410, "gone for good"))


def fail() -> Response:
    raise ValueError("a secret of the process")
