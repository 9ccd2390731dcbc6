"""The books of the page pool: what is shared, what is evicted, and that no page is ever in two places."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gptoss_jax.engine.pages import PageStore

SIZE = 4


def make_tokens(*pages: int, rest: int = 0) -> list[int]:
    """Whole pages, each told apart by one number, and some tokens more."""
    return [number for page in pages for number in (page, 7, 7, 7)] + [9] * rest


def compute(store: PageStore, tokens: list[int]) -> list[int]:
    """What the engine does with a prompt nobody has computed: its pages, findable, a snapshot at the end."""
    pages = store.allocate(-(-len(tokens) // SIZE))
    assert pages is not None
    store.register(tokens, pages)
    whole = len(tokens) // SIZE * SIZE
    if whole:
        store.save(tokens, whole)
    return pages


def found(store: PageStore, tokens: list[int]) -> int:
    """The length of the cached prefix, without keeping it."""
    prefix = store.match(tokens)
    store.release(prefix.pages)
    return prefix.length


# What is found


def last_boundary(store, tokens, computed):
    """The longest prefix beyond `computed` that is worth a snapshot; 0 for none."""
    return max(store.boundaries(tokens, computed), default=0)


def test_a_prefix_is_found_with_its_pages_and_its_snapshot():
    store = PageStore(8, SIZE, 2)
    pages = store.allocate(3)
    tokens = make_tokens(1, 2, 3)
    store.register(tokens, pages)
    row = store.save(tokens, 2 * SIZE)
    prefix = store.match(make_tokens(1, 2, 8))
    assert (prefix.length, prefix.pages, prefix.snapshot) == (2 * SIZE, pages[:2], row)


def test_pages_without_a_snapshot_at_their_end_are_no_prefix():
    store = PageStore(8, SIZE, 2)
    store.register(make_tokens(1, 2), store.allocate(2))
    assert store.match(make_tokens(1, 2, 3)).length == 0
    store.save(make_tokens(1, 2), SIZE)
    assert store.match(make_tokens(1, 2, 3)).length == SIZE


def test_the_last_token_is_never_part_of_the_prefix():
    store = PageStore(8, SIZE, 4)
    compute(store, make_tokens(1, 2))
    store.save(make_tokens(1, 2), SIZE)
    assert found(store, make_tokens(1, 2)) == SIZE
    assert found(store, make_tokens(1, 2, rest=1)) == 2 * SIZE
    assert found(store, make_tokens(1)) == 0
    assert found(store, []) == 0


def test_the_same_page_after_another_beginning_is_not_found():
    store = PageStore(8, SIZE, 4)
    compute(store, make_tokens(1, 2))
    assert found(store, make_tokens(2, 3)) == 0
    assert found(store, make_tokens(3, 2, 4)) == 0


def test_all_samples_of_a_prompt_share_its_whole_pages():
    store = PageStore(16, SIZE, 2)
    prompt = make_tokens(1, 2, 3, rest=2)
    for _ in range(4):
        store.announce(prompt)
    assert last_boundary(store, prompt, 0) == 3 * SIZE
    first = compute(store, prompt)
    used = 16 - store.available
    for _ in range(3):
        prefix = store.match(prompt)
        assert prefix.pages == first[:3]
        assert last_boundary(store, prompt, prefix.length) == 0
    assert 16 - store.available == used


def test_the_system_message_of_a_batch_is_a_boundary_before_anything_is_computed():
    store = PageStore(16, SIZE, 2)
    prompts = [make_tokens(1, 2, 10 + number, rest=1) for number in range(5)]
    for prompt in prompts:
        store.announce(prompt)
    assert [last_boundary(store, prompt, 0) for prompt in prompts] == [2 * SIZE] * 5
    store.register(prompts[0], store.allocate(4))
    assert store.save(prompts[0], 2 * SIZE) is not None
    assert [found(store, prompt) for prompt in prompts] == [2 * SIZE] * 5
    assert last_boundary(store, prompts[1], 2 * SIZE) == 0


def test_samples_of_prompts_with_one_system_message_part_in_two_places():
    store = PageStore(16, SIZE, 4)
    prompts = [make_tokens(1, 2, 10 + number, 3, rest=1) for number in range(3)]
    for prompt in [*prompts, *prompts]:
        store.announce(prompt)
    assert store.boundaries(prompts[0], 0) == [2 * SIZE, 4 * SIZE]
    assert store.boundaries(prompts[0], 2 * SIZE) == [4 * SIZE]
    store.register(prompts[0], store.allocate(5))
    store.save(prompts[0], 2 * SIZE)
    assert store.boundaries(prompts[0], 0) == [4 * SIZE]
    assert last_boundary(store, prompts[0], 4 * SIZE) == 0


def test_a_boundary_leaves_a_token_to_compute():
    store = PageStore(16, SIZE, 4)
    prompt = make_tokens(1, 2)
    store.announce(prompt)
    store.announce(prompt)
    assert last_boundary(store, prompt, 0) == SIZE


def test_a_prompt_that_is_gone_still_counts_as_seen():
    store = PageStore(16, SIZE, 4)
    store.announce(make_tokens(1, 2, 3))
    store.forget(make_tokens(1, 2, 3))
    store.announce(make_tokens(1, 2, 4))
    assert last_boundary(store, make_tokens(1, 2, 4), 0) == 2 * SIZE


def test_a_prompt_alone_has_no_boundary():
    store = PageStore(16, SIZE, 4)
    store.announce(make_tokens(1, 2, 3))
    assert last_boundary(store, make_tokens(1, 2, 3), 0) == 0


def test_seen_prompts_are_remembered_up_to_a_limit_the_latest_ones():
    store = PageStore(16, SIZE, 4, remembered=3)
    for prompt in (make_tokens(1, 2), make_tokens(3, 4, 5)):
        store.announce(prompt)
        store.forget(prompt)
    assert len(store._remembered) == 3
    for prompt, expected in ((make_tokens(1, 2, 8), 0), (make_tokens(3, 4, 5, 8), 3 * SIZE)):
        store.announce(prompt)
        assert last_boundary(store, prompt, 0) == expected


def test_evicted_pages_of_no_prompt_are_not_remembered():
    store = PageStore(2, SIZE, 2)
    store.release(compute(store, make_tokens(1, 2)))
    store.allocate(2)
    assert not store._remembered and not store._root.children


def test_first_come_stays():
    store = PageStore(16, SIZE, 4)
    first = compute(store, make_tokens(1, 2))
    second = compute(store, make_tokens(1, 3))
    assert store.match(make_tokens(1, 2, 4)).pages == first
    assert store.match(make_tokens(1, 3, 4)).pages == [first[0], second[1]]


def test_private_pages_are_free_as_soon_as_they_are_released():
    store = PageStore(4, SIZE, 4)
    compute(store, make_tokens(1, 2))
    second = compute(store, make_tokens(1, 2))
    store.release(second)
    assert sorted(store.allocate(2)) == sorted(second)


# What goes when room is needed


def test_the_least_recently_used_prefix_is_evicted_its_last_page_first():
    store = PageStore(6, SIZE, 6)
    prompts = [make_tokens(number, number, number, 9) for number in (1, 2)]
    for prompt in prompts:
        pages = store.allocate(3)
        store.register(prompt[: 3 * SIZE], pages)
        for page in (1, 2, 3):
            store.save(prompt, page * SIZE)
        store.release(pages)
    found(store, prompts[0])
    lengths = []
    for _ in range(6):
        assert store.allocate(1) is not None
        lengths.append([len(store_peek(store, prompt)) for prompt in prompts])
    assert lengths == [[3, 2], [3, 1], [3, 0], [2, 0], [1, 0], [0, 0]]


def store_peek(store: PageStore, tokens: list[int]) -> list[int]:
    """The findable pages of a prefix, without using them."""
    return [node.page for node in store._path(tokens, len(tokens)) if node.page is not None]


def test_pages_in_use_are_never_evicted():
    store = PageStore(4, SIZE, 4)
    pages = compute(store, make_tokens(1, 2))
    store.release(pages)
    assert store.match(make_tokens(1, 2, 3)).pages == pages
    assert store.allocate(3) is None
    assert store.available == 2
    assert not set(store.allocate(2)) & set(pages)
    assert store.allocate(1) is None


def test_pages_after_an_evicted_one_that_are_in_use_become_private():
    store = PageStore(4, SIZE, 4)
    first = compute(store, make_tokens(1))
    second = compute(store, make_tokens(1, 2))  # its first page stays private, its second is findable
    store.release(first)
    assert len(store.allocate(2)) == 2  # one was free, one is `first`
    assert found(store, make_tokens(1, 2, 3)) == 0
    assert store.available == 0
    store.release(second)
    assert store.available == 2
    assert sorted(store.allocate(2)) == sorted(second)


def test_a_page_that_is_not_used_itself_outlives_a_later_one_of_the_same_prefix():
    store = PageStore(4, SIZE, 4)
    first = compute(store, make_tokens(1))
    second = compute(store, make_tokens(1, 2))  # its first page stays private, its second is findable
    store.release(first)
    store.release(second)
    store.allocate(3)
    assert store_peek(store, make_tokens(1, 2)) == first


def test_a_failed_allocation_takes_and_evicts_nothing():
    store = PageStore(4, SIZE, 4)
    store.release(compute(store, make_tokens(1, 2)))
    assert store.allocate(5) is None
    assert store.available == 4
    assert found(store, make_tokens(1, 2, 3)) == 2 * SIZE


def test_the_least_recently_used_snapshot_is_taken_over():
    store = PageStore(8, SIZE, 2)
    tokens = {number: make_tokens(number) for number in (1, 2, 3)}
    rows = {}
    for number in (1, 2):
        pages = store.allocate(1)
        store.register(tokens[number], pages)
        rows[number] = store.save(tokens[number], SIZE)
    assert sorted(rows.values()) == [0, 1]
    assert found(store, make_tokens(1, 9)) == SIZE
    store.register(tokens[3], store.allocate(1))
    assert store.save(tokens[3], SIZE) == rows[2]
    assert [found(store, make_tokens(number, 9)) for number in (1, 2, 3)] == [SIZE, 0, SIZE]


def test_using_a_prefix_keeps_the_snapshots_before_it():
    store = PageStore(8, SIZE, 2)
    store.register(make_tokens(1, 2), store.allocate(2))
    store.save(make_tokens(1, 2), SIZE)
    store.save(make_tokens(1, 2), 2 * SIZE)
    found(store, make_tokens(1, 2, 9))
    store.register(make_tokens(3), store.allocate(1))
    store.save(make_tokens(3), SIZE)
    assert found(store, make_tokens(1, 2, 9)) == SIZE


def test_there_is_no_row_without_rows_or_for_what_cannot_be_found():
    assert PageStore(4, SIZE, 2).save(make_tokens(1), SIZE) is None
    store = PageStore(4, SIZE, 0)
    store.register(make_tokens(1), store.allocate(1))
    assert store.save(make_tokens(1), SIZE) is None


def test_a_snapshot_is_saved_once():
    store = PageStore(4, SIZE, 2)
    store.register(make_tokens(1), store.allocate(1))
    assert store.save(make_tokens(1), SIZE) is not None
    assert store.save(make_tokens(1), SIZE) is None


# Misuse, and size


def test_misuse_is_an_exception():
    store = PageStore(4, SIZE, 2)
    pages = store.allocate(2)
    store.release(pages)
    with pytest.raises(RuntimeError, match=f"page {pages[0]} is released, but has no references"):
        store.release(pages)
    with pytest.raises(RuntimeError, match="has no references"):
        store.register(make_tokens(1, 2), pages)
    with pytest.raises(RuntimeError, match="a prompt of 8 tokens is forgotten"):
        store.forget(make_tokens(1, 2))
    pages = store.allocate(2)
    with pytest.raises(RuntimeError, match="2 pages are registered for 3"):
        store.register(make_tokens(1, 2, 3), pages)
    store.register(make_tokens(1, 2), pages)
    with pytest.raises(RuntimeError, match="holds other tokens"):
        store.register(make_tokens(3), pages)
    with pytest.raises(RuntimeError, match="not whole pages"):
        store.save(make_tokens(1, 2), SIZE + 1)
    assert store.match(make_tokens(3, 4)).length == 0


def test_the_longest_prompt_works():
    pages = 8192
    store = PageStore(pages + 1, 16, 2)
    prompt = [*range(16 * pages), 1]
    store.announce(prompt)
    store.announce(prompt)
    assert last_boundary(store, prompt, 0) == 16 * pages
    own = store.allocate(pages + 1)
    store.register(prompt, own)
    store.save(prompt, 16 * pages)
    store.release(own)
    assert len(store.match(prompt).pages) == pages
    store.release(own[:pages])
    assert len(store.allocate(pages + 1)) == pages + 1
    store.forget(prompt)
    store.forget(prompt)
    assert len(store._remembered) == pages


# Against a naive model


class Holder:
    """A sequence in the model: its tokens, and the pages it refers to in their order."""

    def __init__(self, tokens: list[int], pages: list[int]):
        self.tokens = tokens
        self.pages = pages


class Books(RuleBasedStateMachine):
    """Random sequences share few pages of tokens in a small pool; the model recounts everything naively."""

    PAGES = 12
    ROWS = 3
    prompts = st.lists(st.integers(0, 2), max_size=5).flatmap(
        lambda pages: st.integers(0, SIZE - 1).map(lambda rest: make_tokens(*pages, rest=rest))
    )

    def __init__(self):
        super().__init__()
        self.store = PageStore(self.PAGES, SIZE, self.ROWS, remembered=6)
        self.holders: list[Holder] = []
        self.announced: list[list[int]] = []
        self.contents: dict[int, list[int]] = {}  # page → the prefix it was registered for
        self.rows: dict[int, list[int]] = {}  # row → the prefix it holds

    def in_use(self) -> set[int]:
        return {page for holder in self.holders for page in holder.pages}

    @rule(tokens=prompts)
    def start(self, tokens):
        prefix = self.store.match(tokens)
        whole = prefix.length // SIZE
        assert len(prefix.pages) == whole and prefix.length % SIZE == 0
        assert prefix.length < max(1, len(tokens))
        for number, page in enumerate(prefix.pages):
            assert self.contents[page] == tokens[: (number + 1) * SIZE]
        if prefix.length:
            assert self.rows[prefix.snapshot] == tokens[: prefix.length]
        else:
            assert prefix.snapshot is None
        holder = Holder(tokens, prefix.pages)
        self.holders.append(holder)
        count = -(-len(tokens) // SIZE) - whole
        available = self.store.available
        before = self.in_use()
        pages = self.store.allocate(count)
        if pages is None:
            assert count > available == self.store.available
            self.store.release(holder.pages)
            self.holders.remove(holder)
            return
        assert len(set(pages)) == count <= available
        assert not set(pages) & before
        for page in pages:
            self.contents.pop(page, None)
        holder.pages = holder.pages + pages

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def register(self, data):
        holder = data.draw(st.sampled_from(self.holders))
        length = data.draw(st.integers(0, len(holder.tokens)))
        self.store.register(holder.tokens[:length], holder.pages)
        for number in range(length // SIZE):
            prefix = holder.tokens[: (number + 1) * SIZE]
            page = store_peek(self.store, prefix)[-1]
            if page == holder.pages[number]:
                self.contents[page] = prefix
            else:
                assert self.contents[page] == prefix, "the first to come stays"

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def save(self, data):
        holder = data.draw(st.sampled_from(self.holders))
        length = SIZE * data.draw(st.integers(0, len(holder.tokens) // SIZE))
        row = self.store.save(holder.tokens, length) if length else None
        if row is not None:
            self.rows[row] = holder.tokens[:length]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def finish(self, data):
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.store.release(data.draw(st.permutations(holder.pages)))

    @rule(tokens=prompts)
    def announce(self, tokens):
        self.store.announce(tokens)
        self.announced.append(tokens)

    @precondition(lambda self: self.announced)
    @rule(data=st.data())
    def boundaries(self, data):
        tokens = data.draw(st.sampled_from(self.announced))
        computed = data.draw(st.integers(0, len(tokens)))
        places = self.store.boundaries(tokens, computed)
        assert places == sorted(set(places))
        assert all(computed < place < len(tokens) and place % SIZE == 0 for place in places)
        others = list(self.announced)
        others.remove(tokens)
        for page in range(1, len(tokens) // SIZE + 1):
            length = page * SIZE
            if computed < length < len(tokens):
                sharing = [other for other in others if other[:length] == tokens[:length]]
                parting = [other for other in sharing if other[: length + SIZE] != tokens[: length + SIZE]]
                saved = tokens[:length] in self.live_rows().values()
                ends = length + SIZE >= len(tokens)
                if sharing and (parting or ends) and not saved:
                    assert length in places
                if saved:
                    assert length not in places

    @precondition(lambda self: self.announced)
    @rule(data=st.data())
    def forget(self, data):
        tokens = data.draw(st.sampled_from(self.announced))
        self.announced.remove(tokens)
        self.store.forget(tokens)

    def live_rows(self) -> dict[int, list[int]]:
        """The rows that the store says it has, which the model must have seen saved."""
        live = {node.snapshot: node for node in self.store._saved}
        assert len(live) == len(self.store._saved), "a row is in two places"
        assert live.keys() <= set(range(self.ROWS))
        return {row: self.rows[row] for row in live}

    @invariant()
    def books_agree(self):
        store = self.store
        counts = [sum(holder.pages.count(page) for holder in self.holders) for page in range(self.PAGES)]
        assert store._references == counts
        nodes, waiting = [], [store._root]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            nodes.append(node)
        nodes.remove(store._root)
        findable = [node.page for node in nodes if node.page is not None]
        assert len(findable) == len(set(findable)), "a page is in two places"
        assert not set(findable) & set(store._free)
        assert all(counts[page] == 0 for page in store._free)
        idle = {node.page for node in store._idle}
        assert idle == {page for page in findable if counts[page] == 0}
        assert len(store._free) == len(set(store._free))
        assert store.available == self.PAGES - len(self.in_use())
        for node in nodes:
            assert node.page is None or node.parent is store._root or node.parent.page is not None
            assert node.snapshot is None or (node.page is not None and node in store._saved)
            kept = node.page is not None or node.announced
            assert bool(kept) != (node in store._remembered)
            assert node.paged_children == sum(child.page is not None for child in node.children.values())
        for order in (store._idle, store._saved, store._remembered):
            place = {node: number for number, node in enumerate(order)}
            for node in order:
                above = node.parent
                while above is not None:
                    assert place.get(above, len(place)) > place[node], "a page goes before those after it"
                    above = above.parent
        assert len(store._remembered) <= 6

    def teardown(self):
        for holder in self.holders:
            self.store.release(holder.pages)
        for tokens in self.announced:
            self.store.forget(tokens)
        assert self.store.available == self.PAGES
        pages = self.store.allocate(self.PAGES)
        assert sorted(pages) == list(range(self.PAGES))
        assert not self.store._saved and not self.store._idle
        assert all(self.store.match(make_tokens(*path, 9)).length == 0 for path in ((0,), (1,), (2,), (0, 0)))


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
