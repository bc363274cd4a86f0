"""What is told to people and peers."""


def one_line(text: str, most: int) -> str:
    """One printable line of at most `most` characters: drivers and peers chose parts of it."""
    spaced = " ".join(text.split())
    return "".join(sign if sign.isprintable() else "?" for sign in spaced)[:most]
