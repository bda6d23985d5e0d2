"""socketify: uWebSockets in C++ through cffi, with a handler in Python. Only the page."""

from __future__ import annotations

from typing import Any

from _common import HOST, PAGE, PAGE_PATH, PAGE_TYPE, Options, free_port, main, needs, ready, skip

with needs("socketify"):
    try:
        from socketify import App, AppListenOptions
    except OSError as error:  # its library lacks another one, as a rule libuv
        skip(str(error).partition("\n")[0])


def page(response: Any, request: Any) -> None:
    response.write_header("Content-Type", PAGE_TYPE)
    response.end(PAGE)


def not_found(response: Any, request: Any) -> None:
    response.write_status(404).end(b"not found")


def serve(options: Options) -> None:
    app, port = App(), free_port()
    app.get(PAGE_PATH, page)
    app.any("/*", not_found)
    app.listen(AppListenOptions(port=port, host=HOST), lambda config: ready(port, "socketify"))
    app.run()


if __name__ == "__main__":
    main(serve)
