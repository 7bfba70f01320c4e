"""TLS in front of a server without its own, as a proxy does in a cluster."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.abuse.certificates import Signed

__all__ = ["TlsFront"]

_POSTGRES_WANTS_TLS = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class TlsFront:
    """Listens on `port` with a certificate, and forwards everything in plain text to a server on this machine.

    With `postgres` the connection begins in plain text, as PostgreSQL's do: the client asks for TLS, the answer is yes.
    """

    def __init__(self, server_port: int, signed: Signed, *, postgres: bool = False) -> None:
        self.port = 0
        self._server_port = server_port
        self._postgres = postgres
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(signed.certificate, signed.key)
        self._loop = asyncio.new_event_loop()
        self._listens = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._listen()), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        self._loop.close()

    async def _listen(self) -> None:
        secured = None if self._postgres else self._context
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=secured)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._end.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):  # the client rejected it and closed
            try:
                if self._postgres:
                    if await reader.readexactly(8) != _POSTGRES_WANTS_TLS:
                        return  # the client would have gone on in plain text
                    writer.write(b"S")
                    await writer.start_tls(self._context)
                inner, outer = await asyncio.open_connection("127.0.0.1", self._server_port)
                try:
                    await asyncio.gather(_hand_on(reader, outer), _hand_on(inner, writer))
                finally:
                    outer.close()
            finally:
                writer.close()


async def _hand_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.close()
