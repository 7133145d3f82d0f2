"""Free pages of a store: runs of neighbours, first fit."""

from __future__ import annotations

from bisect import bisect_left


class Space:
    """Free runs, in ascending order; neighbours are one run."""

    def __init__(self, pages: int) -> None:
        self._starts = [0] if pages else []
        self._lengths = [pages] if pages else []

    @property
    def free(self) -> int:
        """Free pages."""
        return sum(self._lengths)

    def take(self, count: int) -> int | None:
        """Take ``count`` neighbours. Returns the first one; None if no run is long enough."""
        for index, length in enumerate(self._lengths):
            if length >= count:
                start = self._starts[index]
                self._shorten(index, start + count, length - count)
                return start
        return None

    def take_at(self, start: int, count: int) -> bool:
        """Take exactly these pages; False, and nothing taken, if one of them is not free."""
        index = bisect_left(self._starts, start + 1) - 1
        if index < 0:
            return False
        first, length = self._starts[index], self._lengths[index]
        if start + count > first + length:
            return False
        self._shorten(index, start + count, first + length - start - count)
        if start > first:
            self._starts.insert(index, first)
            self._lengths.insert(index, start - first)
        return True

    def give(self, start: int, count: int) -> None:
        """Free pages that were taken."""
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and start + count == self._starts[index]:
            count += self._lengths[index]
            del self._starts[index], self._lengths[index]
        if index > 0 and self._starts[index - 1] + self._lengths[index - 1] == start:
            self._lengths[index - 1] += count
        else:
            self._starts.insert(index, start)
            self._lengths.insert(index, count)

    def _shorten(self, index: int, start: int, length: int) -> None:
        """Make run ``index`` the run of ``length`` pages from ``start`` on; it goes if it has none."""
        if length:
            self._starts[index], self._lengths[index] = start, length
        else:
            del self._starts[index], self._lengths[index]
