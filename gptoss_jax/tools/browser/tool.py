"""The built-in tool `browser`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from gptoss_jax.tools.browser.arguments import ArgumentError, Arguments
from gptoss_jax.tools.browser.backend import Backend, BackendError
from gptoss_jax.tools.browser.page import Page, found_in, shown_page
from gptoss_jax.tools.browser.reading import page_from, results_page, source_page
from gptoss_jax.tools.types import ToolSession, answer_to, text_of
from harmony import Message, ToolNamespaceConfig
from harmony.errors import shown

_MOST_RESULTS = 20
_PAGES = 200
"""How many displays a session remembers; older cursors are gone."""

_BEFORE_MATCH = 4
"""How many lines are shown before the one that a link leads to."""


class BrowserTool:
    """Searches and opens documents of a back end."""

    name = "browser"

    def __init__(self, backend: Backend) -> None:
        """`backend` has the documents."""
        self._backend = backend

    @property
    def declaration(self) -> ToolNamespaceConfig:
        """The tool's entry in the system message."""
        return ToolNamespaceConfig.browser()

    def session(self) -> ToolSession:
        """A new session, in which no page is open."""
        return BrowserSession(self._backend)


class BrowserSession:
    """The pages that were shown, each by its cursor: 0, 1, 2 and so on. Calls run one after another."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = asyncio.Lock()
        self._next = 0
        self._pages: OrderedDict[int, Page] = OrderedDict()  # by cursor
        self._by_address: dict[tuple[str, bool], Page] = {}  # address, whether it is the source

    async def run(self, call: Message) -> Message:
        """See `ToolSession`."""
        async with self._lock:
            try:
                return answer_to(call, await self._run(call))
            except (ArgumentError, BackendError) as error:
                return answer_to(call, f"error: {error}")

    async def close(self) -> None:
        """See `ToolSession`."""
        self._pages.clear()
        self._by_address.clear()

    def address_of(self, cursor: int) -> str | None:
        """The address of the page that a citation `【cursor†…】` means; None if there is none."""
        page = self._pages.get(cursor)
        return (page.address or None) if page is not None else None

    async def _run(self, call: Message) -> str:
        function = (call.recipient or "").partition(".")[2]
        actions = {"search": self._search, "open": self._open, "find": self._find}
        if function not in actions:
            raise ArgumentError(f"there is no function {shown(function)}: browser has search, open and find")
        return await actions[function](Arguments(text_of(call)))

    async def _search(self, arguments: Arguments) -> str:
        query = arguments.text("query")
        count = min(max(arguments.number("topn") or 10, 1), _MOST_RESULTS)
        hits = await self._backend.search(query, count)
        return self._show(results_page(query, hits[:count], self._backend))

    async def _open(self, arguments: Arguments) -> str:
        wanted = arguments.number_or_text("id")
        cursor = arguments.number("cursor")
        start = arguments.number("loc")
        count = arguments.number("num_lines")
        as_source = arguments.flag("view_source")
        line = None
        if isinstance(wanted, str):
            page = await self._load(wanted, as_source)
        elif wanted is not None:
            links = self._page(cursor).links
            if wanted >= len(links):
                allowed = f"from 0 to {len(links) - 1}" if links else "absent: this page has no links"
                raise ArgumentError(f"`id` is {wanted}: it must be {allowed}")
            line = links[wanted].line
            page = await self._load(links[wanted].address, as_source, again=False)
        else:
            page = self._page(cursor)
            if as_source:
                if page.is_list:
                    raise ArgumentError("a list of results has no source: open one of them")
                page = await self._load(page.address, True, again=False)
        if start is None:
            start = 0 if line is None else line - _BEFORE_MATCH if line > _BEFORE_MATCH else line
        if start >= len(page.lines):
            raise ArgumentError(f"`loc` is {start}: the last line of the page is {len(page.lines) - 1}")
        return self._show(page, start, count or None)

    async def _find(self, arguments: Arguments) -> str:
        pattern = arguments.text("pattern")
        page = self._page(arguments.number("cursor"))
        if page.is_list:
            raise ArgumentError("nothing can be found in a list of results: open one of them first")
        return self._show(await asyncio.to_thread(found_in, page, pattern))

    def _page(self, cursor: int | None) -> Page:
        """The page of a cursor; None for the last one that was shown."""
        if not self._pages:
            raise ArgumentError("no page is open yet: search, or open an address")
        if cursor is None:
            return next(reversed(self._pages.values()))
        if cursor not in self._pages:
            first = next(iter(self._pages))
            raise ArgumentError(f"`cursor` is {cursor}: it must be from {first} to {self._next - 1}")
        return self._pages[cursor]

    async def _load(self, address: str, as_source: bool, *, again: bool = True) -> Page:
        """The page of an address: one that was opened before, unless it is to be loaded `again`."""
        known = self._by_address.get((address, as_source))
        if known is not None and not again:
            return known
        document = await self._backend.open(address)
        if as_source:
            page = await asyncio.to_thread(source_page, document)
        else:
            page = await asyncio.to_thread(page_from, document, self._backend)
        self._by_address[address, as_source] = page
        return page

    def _show(self, page: Page, start: int = 0, count: int | None = None) -> str:
        """Gives the page the next cursor, and shows a part of it."""
        cursor, self._next = self._next, self._next + 1
        self._pages[cursor] = page
        while len(self._pages) > _PAGES:
            _, old = self._pages.popitem(last=False)
            if all(other is not old for other in self._pages.values()):
                self._by_address = {key: kept for key, kept in self._by_address.items() if kept is not old}
        return shown_page(page, cursor, start, count)
