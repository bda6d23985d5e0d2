"""Pages beside the calls, on the same port: a gallery for people, a picture, a number for programs, a health check.

    python examples/web_pages.py            # serves; then open http://127.0.0.1:8545/ in a browser
    curl http://127.0.0.1:8545/api/mean/cat
    rpcstream mean name=cat

The last two commands give the same numbers: the mean colour of the cat.
"""

from __future__ import annotations

import functools
from pathlib import Path

import PIL.Image

from rpcstream import Info, RpcError, Server
from rpcstream.web import Html, HttpError, Request, Response, html

PICTURES = Path(__file__).parent / "pictures"

STYLE = b"body { font-family: sans-serif; margin: 2em } figure { display: inline-block }"

PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><link rel="stylesheet" href="/style.css"></head>
<body><h1>{title}</h1>{body}</body>
</html>
"""

FIGURE = """<figure>
  <a href="/pictures/{file}"><img src="/thumbnails/{name}?side=200" alt="{name}"></a>
  <figcaption>{name}, {width} x {height}</figcaption>
</figure>
"""

server = Server(info=Info(title="gallery"))
server.static("/style.css", STYLE)
server.static("/pictures/", PICTURES)


@functools.cache
def pictures() -> dict[str, Path]:
    """The pictures by name."""
    return {file.stem: file for file in sorted(PICTURES.glob("*.jpg"))}


def find(name: str) -> Path:
    if name not in pictures():
        raise RpcError(404, f"no picture is called {name!r}")
    return pictures()[name]


def find_for_page(name: str) -> Path:
    try:
        return find(name)
    except RpcError as error:
        raise HttpError(Response(404, f"{error.message}\n".encode(), "text/plain; charset=utf-8")) from None


@server.get("/")
def home(word: str = "") -> Html:
    """All pictures, or those with `word` in their name: `/?word=cat`."""
    figures = []
    for name, file in pictures().items():
        if word in name:
            with PIL.Image.open(file) as image:
                width, height = image.size
            figures.append(html(FIGURE, name=name, file=file.name, width=width, height=height))
    body = figures or html('<p>No picture has "{word}" in its name.</p>', word=word)
    return html(PAGE, title=f"Pictures: {word}" if word else "Pictures", body=body)


@server.get("/thumbnails/{name}", offload="thread")
def thumbnail(name: str, side: int = 100) -> PIL.Image.Image:
    """A small picture, as PNG; scaling takes a while, so it is done in a thread."""
    with PIL.Image.open(find_for_page(name)) as image:
        image.thumbnail((min(side, 500), min(side, 500)))
        return image


@server.get("/api/mean/{name}")
def mean_for_programs(name: str) -> list[float]:
    """A list goes out as JSON."""
    return mean(find_for_page(name).stem)


@server.get("/whoami")
async def whoami(request: Request) -> dict[str, str | None]:
    return {"agent": request.headers.get("user-agent"), "asked": request.target}


@server
def mean(name: str) -> list[float]:
    """The mean colour of a picture: red, green and blue."""
    with PIL.Image.open(find(name)) as image:
        pixel = image.convert("RGB").resize((1, 1), PIL.Image.Resampling.BOX).getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return [float(colour) for colour in pixel]


if __name__ == "__main__":
    server.run(on_listening=lambda address: print(f"http://{address}/", flush=True))
