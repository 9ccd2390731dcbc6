"""The chain of thought, encrypted so that a client can send it back and cannot read it."""

from __future__ import annotations

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from gptoss_jax.openai_api import ApiError


class Sealer:
    """Encrypts texts, and decrypts what it or another with the same key has encrypted.

    The form is Fernet's: AES in CBC mode, authenticated by HMAC.
    """

    def __init__(self, keys: str | None) -> None:
        """`keys`: one key, or several with commas between them: the first encrypts, all of them decrypt. None
        for a key that ends with this process.

        Raises:
            ValueError: a key is none.
        """
        texts = [Fernet.generate_key().decode()] if keys is None else keys.split(",")
        try:
            self._fernet = MultiFernet([Fernet(text.strip()) for text in texts])
        except ValueError:
            raise ValueError(
                "it must be 32 bytes in URL-safe base64, as Fernet.generate_key() makes"
            ) from None

    def seal(self, text: str) -> str:
        """The text, encrypted."""
        return self._fernet.encrypt(text.encode("utf-8", "surrogatepass")).decode()

    def open(self, sealed: str, field: str) -> str:
        """The text that was encrypted.

        Raises:
            ApiError: it is nothing that was encrypted with this key; the message begins with `field`.
        """
        try:
            return self._fernet.decrypt(sealed.encode("utf-8", "surrogatepass")).decode(
                "utf-8", "surrogatepass"
            )
        except (InvalidToken, UnicodeError):
            raise ApiError(
                "invalid_encrypted_content",
                f"{field} was not encrypted with this server's key: leave the item out, or send its text",
                field,
            ) from None
