"""Instructions for networks: words, their numbers, and a small encoder of sentences."""

import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

MOST_WORDS = 32
"""Longest instruction, in words."""
_MOST_KEPT = 4096
"""Number of texts whose numbers are kept."""
_WORD = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """The words and punctuation marks of a text, in small letters."""
    return _WORD.findall(text.lower())


def vocabulary_of(texts: Iterable[str]) -> list[str]:
    """All words of some texts, in the order of the alphabet."""
    return sorted({word for text in texts for word in words_of(text)})


class Tokenizer:
    """Turns observed instructions into numbers of words; 0 is padding."""

    def __init__(self, words: Sequence[str]) -> None:
        self._numbers = {word: number for number, word in enumerate(words, 1)}
        self._known: dict[bytes, list[int]] = {}

    def numbers_of(self, text: str) -> list[int]:
        """Numbers of a text's words, padded to `MOST_WORDS`.

        Raises:
            ValueError: if a word is unknown, or there are too many or none.
        """
        words = words_of(text)
        if unknown := [word for word in words if word not in self._numbers]:
            known = ", ".join(self._numbers)
            raise ValueError(
                f"instruction {text!r:.80}: the policy was not trained on {unknown[0]!r}; it knows {known}"
            )
        if not 0 < len(words) <= MOST_WORDS:
            raise ValueError(f"instruction {text!r:.80} has {len(words)} words; give 1 to {MOST_WORDS}")
        return [self._numbers[word] for word in words] + [0] * (MOST_WORDS - len(words))

    def __call__(self, encoded: Tensor) -> Tensor:
        """Instructions in UTF-8, uint8 [B, L] padded with zeros -> numbers of words, int64 [B, MOST_WORDS].

        Raises:
            ValueError: as `numbers_of`, or if one is no text.
        """
        rows = [row.tobytes() for row in encoded.cpu().numpy()]
        if len(self._known) > _MOST_KEPT:
            # The texts may come from a server's clients.
            self._known.clear()
        for row in set(rows) - self._known.keys():
            try:
                self._known[row] = self.numbers_of(row.rstrip(b"\0").decode())
            except UnicodeDecodeError as error:
                raise ValueError(f"an instruction is no UTF-8 text: {row[:40]!r}") from error
        return torch.tensor([self._known[row] for row in rows], device=encoded.device)


class SentenceEncoder(nn.Module):
    """A transformer over the words of an instruction: numbers int64 [B, MOST_WORDS] -> [B, width].

    Words have positions, since "red on green" is not "green on red".
    """

    def __init__(self, words: int, width: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words + 1, width)
        # Of the same size, or the order of words would be lost beside the words themselves.
        nn.init.normal_(self.words.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(MOST_WORDS, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, 1, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, numbers: Tensor) -> Tensor:
        padding = numbers == 0
        hidden = self.transformer(self.words(numbers) + self.positions, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return (hidden * kept).sum(1) / kept.sum(1)
