"""The nearest valid name to a wrong one."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid name that `word` most likely means, or None."""
    names = list(valid)
    if (spelled := word.replace("-", "_")) in names:
        return spelled
    found = get_close_matches(word, names, n=1)
    return found[0] if found else None


def nearest_key(key: str, valid: Iterable[str]) -> list[str]:
    """Dotted keys that `key` most likely means, best first: misspelt, or without the right section."""
    keys = list(dict.fromkeys(valid))
    if (spelled := key.replace("-", "_")) in keys:
        return [spelled]
    if close := get_close_matches(key, keys, n=1, cutoff=0.85):
        return close
    last = spelled.rpartition(".")[2]
    elsewhere = [other for other in keys if other.rpartition(".")[2] == last]
    if elsewhere:
        return elsewhere[:3]
    if close := get_close_matches(key, keys, n=1):
        return close
    lasts = {other.rpartition(".")[2] for other in keys}
    close = get_close_matches(last, sorted(lasts), n=1, cutoff=0.7)
    return [other for other in keys if close and other.rpartition(".")[2] == close[0]][:3]
