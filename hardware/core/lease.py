"""One commands, all others wait: the lease, and how it ends."""

from dataclasses import dataclass

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core.modes import MAY_PREEMPT
from robot_rl.hardware.core.peer import Peer
from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.protocol.messages import Code, Kind

GRACE = 2000 * MS
"""Time for the first command under a lease, or the first after a pause, ns."""


@dataclass
class Lease:
    """The right to command, of one process."""

    number: int
    holder: Peer
    kind: Kind
    expires: int | None
    """When, ns; None while paused."""
    begun: bool = False
    """Its holder has commanded since it was granted or resumed: now silence is a loss."""
    aligned: bool = False
    """A command has passed the jump guard since: the holder knows where the arm is."""
    last_seq: int = -1


class Leases:
    """Grants one lease at a time. Only commands renew it, so a living heartbeat alone keeps nothing."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._numbers = 0
        self.current: Lease | None = None

    def grant(
        self, peer: Peer, kind: Kind, preempt: bool, now: int, paused: bool
    ) -> tuple[Lease, Lease | None]:
        """A new lease, and the one that it ends.

        Raises:
            Refusal: another holds it, and this one may not or does not want to pre-empt.
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
        expires = None if paused else now + GRACE
        self.current = Lease(number=self._numbers, holder=peer, kind=kind, expires=expires)
        return self.current, old

    def held(self, peer: Peer, number: int) -> Lease:
        """The current lease, if it is this one and this process's.

        Raises:
            Refusal: it is not.
        """
        lease = self.current
        if lease is None:
            raise Refusal(Code.NO_LEASE, f"lease {number} has ended and nobody holds one; acquire a new one")
        if lease.number != number or lease.holder.identity != peer.identity:
            raise Refusal(Code.NO_LEASE, f"lease {number} is not valid; {lease.holder.name} holds the lease")
        return lease

    def require_control(self, peer: Peer, what: str) -> None:
        """Only the holder and operators may.

        Raises:
            Refusal: neither.
        """
        lease = self.current
        if peer.role not in MAY_PREEMPT and (lease is None or lease.holder.identity != peer.identity):
            raise Refusal(Code.NO_LEASE, f"{what}: only the lease's holder or an operator may")

    def renew(self, now: int) -> None:
        """Its holder has commanded."""
        assert self.current is not None
        self.current.begun = True
        self.current.expires = now + self._length

    def suspend(self) -> None:
        """A pause: it does not run out."""
        if self.current is not None:
            self.current.expires = None

    def resume(self, now: int) -> None:
        """It begins anew, with the grace and the jump guard of a new one."""
        if self.current is not None:
            self.current.expires = now + GRACE
            self.current.begun = self.current.aligned = False

    def expired(self, now: int) -> Lease | None:
        """The current lease if it has run out."""
        lease = self.current
        return lease if lease is not None and lease.expires is not None and now > lease.expires else None

    def end(self) -> Lease | None:
        """End the current lease, whoever holds it."""
        ended, self.current = self.current, None
        return ended
