"""Failures: the words are those of the command line, the kinds are for programs."""

from __future__ import annotations


class Error(Exception):
    """What failed in this package. ``str(error)`` says what is wrong, on what, and what to do."""

    #: Kind of the failure, for programs: ``no_agent``, ``unmapped``, ``no_space``, …
    kind: str
    #: Number of the failure, or None if failures of its class have none.
    code: int | None

    def __init__(self, words: str, kind: str, code: int | None = None) -> None:
        super().__init__(words, kind, code)
        self.kind = kind
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class AgentError(Error):
    """The agent was not reached or refused, a region was not mapped, or the object is not usable.

    ``kind`` is ``no_agent``, ``not_permitted``, ``agent_gone``, ``silent``, ``protocol``, ``closed``, ``forked``,
    ``join``, ``system``, ``path``, ``range``, ``abandoned``, or the reason of the agent's refusal, as ``no_region``.
    """


class AccessError(Error):
    """A read, a write or a flush failed.

    ``kind`` is ``unmapped``, ``unaligned``, ``mapped``, ``not_connected``, ``data_lost``, ``failed`` or another kind;
    ``code`` is the number of the operation's status.
    """


class ManagerError(Error):
    """The manager was not reached, or refused.

    ``kind`` is the code of the manager's answer, as ``no_space``, and ``code`` its HTTP status. Without an answer
    ``kind`` is ``unreachable``, ``unanswered`` (the request was sent, and may have been done), ``tls``, ``plain``,
    ``bad_url`` or ``protocol``, and ``code`` is None.
    """
