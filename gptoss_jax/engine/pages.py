"""Which page of the key-value cache belongs to whom, and which prefixes have been computed before.

The cache of the full-attention layers is a pool of pages of a fixed number of tokens; a sequence owns a list
of them. The host keeps the books here, one `PageStore` for each shard of the batch.

Pages that are whole and final become findable: they are the nodes of a tree whose edges are the pages'
tokens, compared as they are, so that a path from the root is a prefix and nothing else can be mistaken for
it. A page is shared by counting its references. One that nobody refers to any more stays findable until its
room is needed; the least recently used goes first, and the later pages of a prefix before the earlier ones.

A sliding layer keeps only a ring of the last tokens, which cannot be cut back to an earlier place. A prefix
can therefore be resumed only where a snapshot of the rings was saved, at exactly its end. Snapshots are few,
so the tree also counts the prompts that pass each node, pages or not: `boundaries` are the places where they
part.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

REMEMBERED = 32_768


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A cached prefix: its tokens, its pages in order, and the snapshot of the rings at its end."""

    length: int
    pages: list[int]
    snapshot: int | None


@dataclasses.dataclass(eq=False, slots=True)
class _Node:
    """A page of tokens after the pages of its parents."""

    parent: _Node | None
    key: bytes
    depth: int
    children: dict[bytes, _Node] = dataclasses.field(default_factory=dict)
    page: int | None = None  # where its keys and values are; a node has a page only if its parent has one
    paged_children: int = 0
    snapshot: int | None = None
    announced: int = 0  # prompts that wait or run
    visits: int = 0  # those and earlier ones


class PageStore:
    """The pages and snapshot rows of one batch shard: who uses them, and what they hold.

    `pages` pages of `page_size` tokens; `snapshots` rows for the rings of sliding layers. Of prompts that are
    gone, at most `remembered` nodes without pages are kept, for their counts.

    Misuse, such as a reference dropped twice, raises RuntimeError.
    """

    def __init__(self, pages: int, page_size: int, snapshots: int, *, remembered: int = REMEMBERED) -> None:
        self.page_size = page_size
        self._references = [0] * pages
        self._nodes: list[_Node | None] = [None] * pages  # where a page is findable
        self._free = list(range(pages - 1, -1, -1))
        self._free_snapshots = list(range(snapshots - 1, -1, -1))
        self._root = _Node(None, b"", 0)
        # Each in order of use, the least recent first. A node always stands behind its descendants.
        self._idle: OrderedDict[_Node, None] = OrderedDict()  # with a page nobody refers to
        self._saved: OrderedDict[_Node, None] = OrderedDict()  # with a snapshot
        self._remembered: OrderedDict[_Node, None] = OrderedDict()  # without a page or a prompt that is alive
        self._most_remembered = remembered

    @property
    def available(self) -> int:
        """How many pages can be allocated: the free ones and those that nobody refers to."""
        return len(self._free) + len(self._idle)

    def allocate(self, count: int) -> list[int] | None:
        """Takes pages, with one reference each, from cached ones too; None, and nothing taken, if too few."""
        if count > self.available:
            return None
        while len(self._free) < count:
            self._unregister(next(iter(self._idle)))
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Drops one reference to each page. Findable ones stay in the cache until their room is needed."""
        idle = []
        for page in pages:
            if self._references[page] < 1:
                raise RuntimeError(f"page {page} is released, but nobody refers to it")
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
        """The longest cached prefix of `tokens`, shorter than them; the caller now refers to its pages.

        It is whole pages long and ends at a snapshot; its length is 0 if there is none. The snapshot's row
        holds these tokens until the next `save`: what is to be read from it must be dispatched before.
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
        """Tells of a prompt that waits or runs, so that what it shares is known before it is computed."""
        node = self._root
        for key in self._keys(tokens, len(tokens)):
            node = self._child(node, key)
            node.announced += 1
            node.visits += 1
            self._remembered.pop(node, None)

    def forget(self, tokens: Sequence[int]) -> None:
        """Takes back one `announce` of the same prompt; that it was there is remembered for a while."""
        path = list(self._path(tokens, len(tokens)))
        if len(path) < len(tokens) // self.page_size or (path and path[-1].announced == 0):
            raise RuntimeError(f"a prompt of {len(tokens)} tokens is forgotten, but it was not announced")
        for node in reversed(path):
            node.announced -= 1
            self._settle(node)
        self._trim()

    def boundaries(self, tokens: Sequence[int], computed: int) -> list[int]:
        """The places beyond `computed` that are worth a snapshot and have none, in order.

        They are where another prompt, announced or remembered, leaves the path of this one, which is itself
        announced: after the system message of all requests, say, then after the whole prompt of which there
        are several samples. Each is a whole number of pages and less than all tokens.
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
        """Makes the whole pages of `tokens` findable; `pages` begin with them and belong to the caller.

        Where the same prefix is findable already its pages stay; the caller's remain private.
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
                problem = "nobody refers to it" if self._references[page] < 1 else "it holds other tokens"
                self._settle(node)
                raise RuntimeError(f"page {page} is registered, but {problem}")
            node.page = page
            parent.paged_children += 1
            self._nodes[page] = node
            self._remembered.pop(node, None)

    def save(self, tokens: Sequence[int], length: int) -> int | None:
        """The row for a snapshot of the rings after `length` tokens, whose pages are findable.

        None where nothing is to be written: there are no rows, the pages are not findable, or a snapshot is
        there already. The least recently used row is taken over if all are in use.
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
        """The whole pages within the first `length` tokens, as bytes."""
        size = self.page_size
        for begin in range(0, length - size + 1, size):
            yield array("i", tokens[begin : begin + size]).tobytes()

    def _path(self, tokens: Sequence[int], length: int) -> Iterator[_Node]:
        """The nodes of the first `length` tokens, as far as there are any."""
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
        """Nodes without references were used just now, and with them those before them."""
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
        """The snapshots of a prefix were used just now."""
        for node in reversed(path):
            if node.snapshot is not None:
                self._saved.move_to_end(node)

    def _unregister(self, node: _Node) -> None:
        """A page, and those after it, can be found no longer. Those in use become private, others free."""
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
        """Remembers or drops a node with neither a page nor a prompt that is alive.

        None of its descendants has either, so they were settled before it.
        """
        if node.announced or node.page is not None:
            return
        if node.visits:
            self._remembered[node] = None
        else:
            self._drop(node)

    def _trim(self) -> None:
        while len(self._remembered) > self._most_remembered:
            oldest, _ = self._remembered.popitem(last=False)
            self._drop(oldest)

    @staticmethod
    def _drop(node: _Node) -> None:
        assert node.parent is not None and not node.children
        del node.parent.children[node.key]
