"""Which server is behind an address, and what it can tell us: asked before the first measured token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.engines.http.client import Client
from draftproof.engines.http.counters import Counts
from draftproof.engines.http.dialects import DIALECTS, OPENAI, Dialect, look
from draftproof.engines.http.stream import WireError
from draftproof.errors import ServerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """
    A server, as it describes itself.

    Attributes
    ----------
    asked_at, url : str
        The address that was given, and its root.
    dialect : Dialect
    model : str
        Its name for the model.
    version : str or None
        None: not reported.
    max_len : int or None
        Longest sequence in tokens, prompt included. None: not reported.
    settings : mapping
        What the server says of its own configuration; empty where it says nothing.
    has_counts : bool
        Whether ``/metrics`` has counts of speculation.
    """

    asked_at: str
    url: str
    dialect: Dialect
    model: str
    version: str | None
    max_len: int | None
    has_counts: bool
    settings: Mapping[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        """For the record; the address is not a fact, since a server that we start has another one each time."""
        return {"server": self.dialect.name, "version": self.version, "model": self.model, "max_len": self.max_len}


def root_of(url: str) -> str:
    """Return a server's root, whether its address was given with the "/v1" of the OpenAI API or without."""
    return url.rstrip("/").removesuffix("/v1")


async def describe(client: Client, url: str, kind: str) -> Endpoint:
    """
    Ask a server what it is.

    Parameters
    ----------
    url : str
        Its root, without "/v1".
    kind : str
        A dialect's name, or "auto".

    Raises
    ------
    ServerError
        It does not answer, or answers as no server that we know.
    """
    root = root_of(url)
    try:
        models = await client.json(f"{root}/v1/models")
        dialect = DIALECTS.get(kind) or await _recognise(client, root, models)
        facts = await client.json(root + dialect.facts) if dialect.facts else None
        counts = Counts.read(await client.page(f"{root}/metrics") or "")
    except WireError as error:
        raise ServerError(f"{error}; start the server first, or check base_url") from None
    told = {"models": models, "facts": facts}
    version, max_len = look(told, dialect.version), look(told, dialect.max_len)
    return Endpoint(
        asked_at=url,
        url=root,
        dialect=dialect,
        model=str(look(models, "data/0/id") or look(facts, "model_id") or ""),
        version=None if version is None else str(version),
        max_len=max_len if isinstance(max_len, int) and max_len > 0 else None,
        has_counts=counts.has(dialect),
        settings=facts if isinstance(facts, dict) else {},
    )


async def _recognise(client: Client, root: str, models: Any) -> Dialect:
    owner = look(models, "data/0/owned_by")
    for dialect in DIALECTS.values():
        if dialect.owner is not None and dialect.owner == owner:
            return dialect
    for dialect in DIALECTS.values():
        if dialect.sign and dialect.facts and look(await client.json(root + dialect.facts), dialect.sign) is not None:
            return dialect
    if look(models, "data/0/id") is not None:
        return OPENAI
    raise ServerError(
        f"{root} answers, and not as a server that we know; allowed are {', '.join(DIALECTS)}: name it with the key 'server'"
    )
