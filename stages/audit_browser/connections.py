"""Connections that say what they want in time. uvicorn waits for a request for ever, and so a few that never end one would keep
everybody else out."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""From the first byte of a request, or from the connection, to its last one: forms have some kilobytes."""


def within(seconds: float = REQUEST_SECONDS) -> type[asyncio.Protocol]:
    """The `http` of a uvicorn configuration that closes connections whose request is not there within `seconds`, headers and
    body."""

    class InTime(H11Protocol):
        _due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def handle_events(self) -> None:
            super().handle_events()
            # Not from each byte anew: one a second would do to stay.
            if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
                self._wait_no_longer()
            else:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait_no_longer()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self._due is None:
                self._due = self.loop.call_later(seconds, self.transport.close)

        def _wait_no_longer(self) -> None:
            if self._due is not None:
                self._due.cancel()
                self._due = None

    return InTime
