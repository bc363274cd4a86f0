"""The command lease: at most one client at a time may command the arm."""

from dataclasses import dataclass

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.modes import MAY_PREEMPT
from robot_rl.hardware.protocol.messages import Code, Kind, Role

FIRST_COMMAND_TIMEOUT = 2000 * MS
"""Time limit for the first command under a lease or after a pause, ns."""


@dataclass(frozen=True)
class Peer:
    """A client as known from its key and its `Hello`."""

    name: str
    role: Role
    src: str
    """Id of the client's process, as the client reports it."""
    key: str = ""
    """Name of the key that authenticated it, "" if the server has no keys."""

    @property
    def identity(self) -> tuple[str, str]:
        """Key and process. A lease is bound to both, so another client's `src` alone gives no rights."""
        return self.key, self.src


@dataclass
class Lease:
    """The right of one client process to command the arm."""

    number: int
    holder: Peer
    kind: Kind
    expires: int | None
    """Expiry time, ns; None while paused."""
    begun: bool = False
    """Whether the holder has sent commands since the grant or resume: only then is silence a loss."""
    aligned: bool = False
    """Whether a command has passed the jump check since then: the holder knows where the arm is."""
    last_seq: int = 0
    """`seq` of the last command; the first has at least 1."""


class Leases:
    """Grants one lease at a time. Commands and home requests renew it, heartbeats do not."""

    def __init__(self, duration_ns: int) -> None:
        """`duration_ns`: time after which the lease expires without a new command."""
        self._duration_ns = duration_ns
        self._numbers = 0
        self.current: Lease | None = None

    def grant(
        self, peer: Peer, kind: Kind, preempt: bool, now: int, paused: bool
    ) -> tuple[Lease, Lease | None]:
        """Grant a lease; returns it and the lease that it replaces.

        Raises:
            Refusal: if another client holds the lease and `peer` does not or may not pre-empt it.
        """
        old = self.current
        if old is not None and old.holder.identity != peer.identity:
            if not preempt:
                raise Refusal(
                    Code.BUSY, f"{old.holder.name} holds the lease; wait for it, or pre-empt as operator"
                )
            if peer.role not in MAY_PREEMPT:
                raise Refusal(Code.ROLE, f"{old.holder.name} holds the lease; only an operator may pre-empt")
        self._numbers += 1
        expires = None if paused else now + FIRST_COMMAND_TIMEOUT
        self.current = Lease(number=self._numbers, holder=peer, kind=kind, expires=expires)
        return self.current, old

    def held(self, peer: Peer, number: int) -> Lease:
        """The current lease, checked to be lease `number` held by `peer`.

        Raises:
            Refusal: if it is not.
        """
        lease = self.current
        if lease is None:
            raise Refusal(
                Code.NO_LEASE, f"lease {number} has ended and no client holds one; acquire a new one"
            )
        if lease.number != number or lease.holder.identity != peer.identity:
            raise Refusal(Code.NO_LEASE, f"lease {number} is not valid; {lease.holder.name} holds the lease")
        return lease

    def require_control(self, peer: Peer, what: str) -> None:
        """Check that `peer` is the lease's holder or an operator.

        Raises:
            Refusal: if it is neither.
        """
        lease = self.current
        if peer.role not in MAY_PREEMPT and (lease is None or lease.holder.identity != peer.identity):
            raise Refusal(Code.NO_LEASE, f"{what}: only the lease's holder or an operator may")

    def renew(self, now: int) -> None:
        """Extend the current lease after a command or a home request."""
        assert self.current is not None
        self.current.begun = True
        self.current.expires = now + self._duration_ns

    def suspend(self) -> None:
        """Pause: the lease does not expire."""
        if self.current is not None:
            self.current.expires = None

    def resume(self, now: int) -> None:
        """End a pause: the lease continues with the first-command timeout and jump check of a new one."""
        if self.current is not None:
            self.current.expires = now + FIRST_COMMAND_TIMEOUT
            self.current.begun = self.current.aligned = False

    def expired(self, now: int) -> Lease | None:
        """The current lease if it has expired."""
        lease = self.current
        return lease if lease is not None and lease.expires is not None and now > lease.expires else None

    def end(self) -> Lease | None:
        """End and return the current lease."""
        ended, self.current = self.current, None
        return ended
