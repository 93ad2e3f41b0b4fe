"""What an elastic group is to a session: how its ranks meet, and what this rank does for others that join
later. ``attach_group.GroupMeeting`` is the same for process groups of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from ..attach_checks import FixedMembership, other_collectives
from ..config import Config
from ..connect import Connection, connect, hello_of
from ..errors import ConfigError
from ..exchange import Exchange, StoreExchange, agree
from ..snapshot.rejoin import Rejoin
from .arrival import Arrival
from .entrance import enter, survey
from .group import ElasticGroup
from .initial import begin_alike
from .keeper import Keeper
from .member import Member
from .record import Entry, Record

if TYPE_CHECKING:
    from ..comm_hook import Session


class OnlyHere(FixedMembership):
    """A process that joins later would miss every collective outside the session, so there may be none."""

    def note(self, *reasons: str) -> None:
        """ValueError names the first reason."""
        if reasons:
            raise ValueError(
                f"an ElasticGroup cannot be used: {reasons[0]}. Use a process group of torch, which all "
                f"ranks join at the beginning"
            )


class ElasticMeeting:
    """Of one session."""

    def __init__(self, group: ElasticGroup, config: Config) -> None:
        _check(config)
        self.rank = group.rank
        self.size = group.size
        self.name = f"elastic {group.board.prefix} {id(group):x}"
        self.timeout_seconds = group.timeout_seconds
        self.master = group.master
        self._group = group
        self._config = config
        self._joins: Record | None = None
        self._session_name = ""
        self._found: Connection | None = None
        self._entry: Entry | None = None
        self._member: Member | None = None
        self._keeper: Keeper | None = None
        self._engine: Any = None

    def membership(self) -> FixedMembership:
        """What becomes of collectives outside the session."""
        return OnlyHere(self.rank)

    def collectives(self, model: DistributedDataParallel) -> list[str]:
        """Those of DDP that concern other ranks. Buffers are broadcast from this rank to itself."""
        return [reason for reason in other_collectives(model) if "buffers" not in reason]

    def arrive(self) -> Exchange:
        """Wait for the other ranks, or find them at work."""
        if self.size == 1:
            return _Known([0], self.rank)
        config, board = self._config, self._group.board
        arrival = Arrival(
            board,
            self.rank,
            self.size,
            lambda record: survey(record, self.rank),
            config.connect_timeout_seconds,
        )
        found = arrival.wait(config.timeout_seconds or self.timeout_seconds)
        if isinstance(found, Record):
            self._joins = found
            self._session_name = found.session
            return _Known([entry.door for entry in found.ranks], self.rank)
        self._session_name = found
        return StoreExchange(board.store, self.rank, self.size, f"{board.prefix}/{found}")

    def connector(
        self, exchange: Exchange, config: Config, arrive_seconds: float, master: str, fixed_membership: bool
    ) -> Connection:
        """See ``connect.connect``."""
        if self._joins is not None:
            self._found, self._entry = enter(self._joins, self.rank, config, master)
        elif self.size > 1:
            self._found = connect(exchange, config, arrive_seconds, master, fixed_membership)
        else:
            return connect(exchange, config, arrive_seconds, master, fixed_membership)
        self._engine = self._found.engine
        return self._found

    def begin(self, session: Session, exchange: Exchange, model: DistributedDataParallel) -> None:
        """The session is there: be a member, or become one."""
        session.keep(session._streams)
        if self._found is None:
            return  # alone
        rejoin = session._rejoin
        if self._joins is None:
            begin_alike(exchange, model, session.all_reduce_async, self.timeout_seconds)
        record = self._record(exchange, rejoin)
        self._member = Member(self.rank, record, rejoin.standing, _Mover(self.rank, self._engine, rejoin))
        rejoin.answer({"group": self._member.about_group, "join": self._member.about_join})
        self._keeper = Keeper(self._group.board, self._member, rejoin.peers)
        rejoin.ask_who_finished(self._keeper.has_finished)
        if self._joins is not None:
            rejoin.begin_behind()
        self._keeper.start()

    def stats(self) -> dict[str, int]:
        """Of processes that joined, or tried to."""
        if self._member is None:
            return {}
        return {
            "incarnation": self._member.record.ranks[self.rank].incarnation,
            "joins_accepted": self._member.counts.accepted,
            "joins_refused": self._member.counts.refused,
        }

    def close(self, finished: bool) -> None:
        """Others that join are answered no more."""
        if self._keeper is not None:
            self._keeper.stop(finished)
            self._keeper = None

    def _record(self, exchange: Exchange, rejoin: Rejoin) -> Record:
        if self._joins is not None:
            assert self._entry is not None
            own = Entry(**{**vars(self._entry), "door": rejoin.door})
            return self._joins.with_entry(self.rank, own)
        found = self._found
        assert found is not None
        hello = hello_of(self.rank, self._config, self.master)
        doors = agree(exchange, lambda: rejoin.door, self.timeout_seconds)
        ranks = tuple(
            Entry(0, found.addresses[rank], tuple(found.ports[rank]), found.grants[rank], doors[rank])
            for rank in range(self.size)
        )
        return Record(
            self._session_name,
            hello["version"],
            hello["settings"],
            found.secret,
            found.seed,
            found.hosts,
            found.mtu,
            ranks,
            tuple(tuple(row) for row in found.rows),
        )


class _Known:
    """The exchange of a process that joins: what the others would say is known."""

    def __init__(self, values: list[Any], rank: int) -> None:
        self.rank = rank
        self.size = len(values)
        self._values = values

    def gather(self, value: Any, timeout_seconds: float) -> list[Any]:
        """Of the one round that such a process takes part in."""
        answers = [{"value": each} for each in self._values]
        answers[self.rank] = value
        return answers


class _Mover:
    """Makes the engine and the snapshot service follow a rank to its new process."""

    def __init__(self, rank: int, engine: Any, rejoin: Rejoin) -> None:
        self._rank = rank
        self._engine = engine
        self._rejoin = rejoin

    def __call__(self, rank: int, entry: Entry) -> None:
        try:
            self._engine.redirect(rank, entry.address, entry.ports[self._rank])
        except RuntimeError as error:
            raise ValueError(f"rank {rank} cannot be reached at {entry.address}: {error}") from error
        self._rejoin.move(rank, entry.address, entry.door)


def _check(config: Config) -> None:
    reason = " in an ElasticGroup, because a restarted process could not join"
    if config.delivery != "carry":
        raise ConfigError(f'delivery = {config.delivery!r} is not usable{reason}; use "carry"')
    if config.multicast == "on":
        raise ConfigError(f'multicast = "on" is not usable{reason}; use "off" or "auto"')
    if config.groups not in ("auto", 1):
        raise ConfigError(f'groups = {config.groups!r} is not usable{reason}; use 1 or "auto"')
