"""Allocation of the KV cache's pages, and the prefix cache. Runs on the host.

The full-attention layers keep keys and values in a pool of pages; a page holds a fixed number of tokens, and
a sequence owns a list of pages. Each shard of the batch has one `PageStore`.

The prefix cache is a tree. A node is a full page, and the edge to it is the page's tokens. They are compared
token by token, not by hash, so a path from the root matches exactly one prefix. Pages are shared and
reference-counted. A page without references stays cached until its room is needed; then the least recently
used page is evicted, and of one prefix the last pages go first.

A sliding layer keeps only a ring of the newest tokens, and a ring cannot be cut back to an earlier position.
A cached prefix is therefore usable only if it ends where a snapshot of the rings was saved. There are few
snapshots. To choose where they help most, the tree also counts the prompts that pass through each node, with
or without a page: `boundaries` returns the positions where prompts diverge.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

REMEMBERED = 32_768
"""Nodes without a page that are kept by default for their counts."""


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A cached prefix.

    length: its tokens; 0 if nothing is cached.
    pages: its pages, in the order of its tokens.
    snapshot: the row with the snapshot of the rings at its end; None if `length` is 0.
    """

    length: int
    pages: list[int]
    snapshot: int | None


@dataclasses.dataclass(eq=False, slots=True)
class _Node:
    """One page of tokens. The nodes from the root to it are the prefix that it continues."""

    parent: _Node | None
    key: bytes
    depth: int
    children: dict[bytes, _Node] = dataclasses.field(default_factory=dict)
    page: int | None = None  # where its keys and values are; only if its parent has a page too
    paged_children: int = 0  # children that have a page
    snapshot: int | None = None  # the row with the rings after this page
    announced: int = 0  # waiting or running prompts that pass through this node
    visits: int = 0  # `announced`, and the finished prompts that passed through it


class PageStore:
    """The pages and snapshot rows of one batch shard: who uses them, and what they hold.

    pages, page_size: the number of pages, and the tokens in each.
    snapshots: rows for snapshots of the sliding layers' rings; 0 for none.
    remembered: nodes without a page that are kept at most, for the counts of finished prompts.

    Misuse, such as a reference dropped twice, raises RuntimeError.
    """

    def __init__(self, pages: int, page_size: int, snapshots: int, *, remembered: int = REMEMBERED) -> None:
        self.page_size = page_size
        self._references = [0] * pages
        self._nodes: list[_Node | None] = [None] * pages  # the node of each cached page
        self._free = list(range(pages - 1, -1, -1))
        self._free_snapshots = list(range(snapshots - 1, -1, -1))
        self._root = _Node(None, b"", 0)
        # Each is ordered by use, the least recently used first. A node always stands behind its descendants.
        self._idle: OrderedDict[_Node, None] = OrderedDict()  # its page has no references
        self._saved: OrderedDict[_Node, None] = OrderedDict()  # it has a snapshot
        self._remembered: OrderedDict[_Node, None] = OrderedDict()  # no page, and no unfinished prompt
        self._max_remembered = remembered

    @property
    def available(self) -> int:
        """How many pages can be allocated: the free pages and the cached ones without references."""
        return len(self._free) + len(self._idle)

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many pages are referenced, cached without references, and free."""
        cached, free = len(self._idle), len(self._free)
        return len(self._references) - cached - free, cached, free

    def allocate(self, count: int) -> list[int] | None:
        """Allocates `count` pages with one reference each, and evicts cached pages if it must.

        Returns None, and changes nothing, if fewer are available.
        """
        if count > self.available:
            return None
        while len(self._free) < count:
            self._unregister(next(iter(self._idle)))
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Drops one reference to each page. Registered pages stay cached until their room is needed."""
        idle = []
        for page in pages:
            if self._references[page] < 1:
                raise RuntimeError(f"page {page} is released, but has no references")
            self._references[page] -= 1
            if self._references[page] == 0:
                node = self._nodes[page]
                if node is None:
                    self._free.append(page)
                else:
                    self._idle[node] = None
                    idle.append(node)
        self._touch(idle)

    def match(self, tokens: Sequence[int]) -> Prefix:
        """Finds the longest usable cached prefix that is shorter than `tokens`, and references its pages.

        The prefix is whole pages long and ends at a snapshot. Its length is 0 if none is cached. The next
        `save` may overwrite the snapshot's row, so the copy from it must be dispatched before.
        """
        path = []
        length = 0
        for node in self._path(tokens, len(tokens) - 1):
            if node.page is None:
                break
            path.append(node)
            if node.snapshot is not None:
                length = len(path)
        if length == 0:
            return Prefix(0, [], None)
        pages = []
        for node in path[:length]:
            assert node.page is not None
            self._references[node.page] += 1
            self._idle.pop(node, None)
            pages.append(node.page)
        self._touch_snapshots(path[:length])
        return Prefix(length * self.page_size, pages, path[length - 1].snapshot)

    def announce(self, tokens: Sequence[int]) -> None:
        """Counts a new prompt, so that its shared prefixes are known before it is computed."""
        node = self._root
        for key in self._keys(tokens, len(tokens)):
            node = self._child(node, key)
            node.announced += 1
            node.visits += 1
            self._remembered.pop(node, None)

    def forget(self, tokens: Sequence[int]) -> None:
        """Ends one `announce` of the same prompt. Its nodes' `visits` are remembered for a while."""
        path = list(self._path(tokens, len(tokens)))
        if len(path) < len(tokens) // self.page_size or (path and path[-1].announced == 0):
            raise RuntimeError(f"a prompt of {len(tokens)} tokens is forgotten, but it was not announced")
        for node in reversed(path):
            node.announced -= 1
            self._settle(node)
        self._trim()

    def boundaries(self, tokens: Sequence[int], computed: int) -> list[int]:
        """Returns the positions after `computed` where a snapshot would help and none exists, ascending.

        They are the positions where another announced or remembered prompt diverges from this one, which
        must be announced too: for example after a system message that all requests share, then after a
        prompt with several samples. Each is a whole number of pages and less than the number of tokens.
        """
        found = []
        last: _Node | None = None
        for node in [*self._path(tokens, len(tokens) - 1), None]:
            visits = node.visits if node is not None and node.visits > 1 else 0
            if last is not None and visits < last.visits and last.snapshot is None:
                found.append(last.depth * self.page_size)
            if not visits:
                break
            last = node
        return [length for length in found if length > computed]

    def register(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Adds the full pages of `tokens` to the prefix cache. The caller must hold a reference to `pages`.

        Where the same prefix is cached already, the cached page stays and the caller's remains private.
        """
        keys = list(self._keys(tokens, len(tokens)))
        if len(pages) < len(keys):
            raise RuntimeError(f"{len(pages)} pages are registered for {len(keys)} pages of tokens")
        node = self._root
        for key, page in zip(keys, pages, strict=False):
            parent, node = node, self._child(node, key)
            if node.page is not None:
                continue
            if self._references[page] < 1 or self._nodes[page] is not None:
                problem = "has no references" if self._references[page] < 1 else "holds other tokens"
                self._settle(node)
                raise RuntimeError(f"page {page} is registered, but {problem}")
            node.page = page
            parent.paged_children += 1
            self._nodes[page] = node
            self._remembered.pop(node, None)

    def save(self, tokens: Sequence[int], length: int) -> int | None:
        """Returns the row in which the caller must save the rings after `length` tokens.

        Returns None if nothing is to be saved: there are no rows, the pages are not cached, or a snapshot
        exists already. If all rows are in use, the least recently used snapshot is replaced.
        """
        if length < 1 or length % self.page_size or length > len(tokens):
            raise RuntimeError(f"a snapshot is saved after {length} of {len(tokens)} tokens: not whole pages")
        path = list(self._path(tokens, length))
        if len(path) * self.page_size < length or path[-1].page is None or path[-1].snapshot is not None:
            return None
        if not self._free_snapshots:
            if not self._saved:
                return None
            self._drop_snapshot(next(iter(self._saved)))
        path[-1].snapshot = self._free_snapshots.pop()
        self._saved[path[-1]] = None
        self._touch_snapshots(path)
        return path[-1].snapshot

    # The tree

    def _keys(self, tokens: Sequence[int], length: int) -> Iterator[bytes]:
        """The full pages within the first `length` tokens, as bytes."""
        size = self.page_size
        for begin in range(0, length - size + 1, size):
            yield array("i", tokens[begin : begin + size]).tobytes()

    def _path(self, tokens: Sequence[int], length: int) -> Iterator[_Node]:
        """The nodes of the first `length` tokens, up to the first that does not exist."""
        node: _Node | None = self._root
        for key in self._keys(tokens, length):
            assert node is not None
            node = node.children.get(key)
            if node is None:
                return
            yield node

    @staticmethod
    def _child(node: _Node, key: bytes) -> _Node:
        child = node.children.get(key)
        if child is None:
            child = node.children[key] = _Node(node, key, node.depth + 1)
        return child

    def _touch(self, nodes: list[_Node]) -> None:
        """Marks nodes and their ancestors as used just now, as far as their pages have no references."""
        seen: set[_Node] = set()
        for node in nodes:
            above: _Node | None = node
            while above is not None and above not in seen:
                seen.add(above)
                above = above.parent
        for node in sorted(seen, key=lambda node: -node.depth):
            if node in self._idle:
                self._idle.move_to_end(node)

    def _touch_snapshots(self, path: list[_Node]) -> None:
        """Marks the snapshots of a prefix as used just now."""
        for node in reversed(path):
            if node.snapshot is not None:
                self._saved.move_to_end(node)

    def _unregister(self, node: _Node) -> None:
        """Evicts a page and its descendants. Pages with references become private, the others free."""
        below = [node]
        for parent in below:
            if parent.paged_children:
                below += [child for child in parent.children.values() if child.page is not None]
        for lost in reversed(below):
            assert lost.page is not None and lost.parent is not None
            if lost.snapshot is not None:
                self._drop_snapshot(lost)
            if lost in self._idle:
                del self._idle[lost]
                self._free.append(lost.page)
            self._nodes[lost.page] = None
            lost.page = None
            lost.parent.paged_children -= 1
            self._settle(lost)
        self._trim()

    def _drop_snapshot(self, node: _Node) -> None:
        assert node.snapshot is not None
        del self._saved[node]
        self._free_snapshots.append(node.snapshot)
        node.snapshot = None

    def _settle(self, node: _Node) -> None:
        """Remembers or drops a node that has neither a page nor an unfinished prompt.

        Its descendants have neither as well: they were settled before it.
        """
        if node.announced or node.page is not None:
            return
        if node.visits:
            self._remembered[node] = None
        else:
            self._drop(node)

    def _trim(self) -> None:
        while len(self._remembered) > self._max_remembered:
            oldest, _ = self._remembered.popitem(last=False)
            self._drop(oldest)

    @staticmethod
    def _drop(node: _Node) -> None:
        assert node.parent is not None and not node.children
        del node.parent.children[node.key]
