"""The generations of coordination that a store knows: `_generations/{number}`, objects that are created once and stay.

A generation is an uninterrupted history of coordination. The cluster's key in coordination has its number and its
nonce, the store's object has them, too. So a coordination that went back, or one that lives on beside another, is told
by one listing: the store's newest generation is not its own. A new cluster begins with 1 (broker/cluster/joining); each
later one is begun by a rebuild, before anything else.

A life compares all at its start. From then on a listing is enough: an object never changes, so its number stands for
its nonce. Before each pass of deletions a broker looks again, so that one over an old coordination deletes nothing that
a rebuild has found. A broker that is paused between that look and its deletion is the one exception: it may delete what
its coordination had as dead.
"""

from collections.abc import Callable

import msgspec

from seaweedq.errors import Damaged, Fenced, UnfitStore
from seaweedq.storage.interface import ObjectStore

GENERATIONS_FOLDER = "_generations/"
FIRST = 1
_PAGE = 1_000


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A generation: `nonce` (32 hexadecimal digits) tells two of one number, which were begun at once. `without_tokens`
    says that the rebuild which began it leaves out principals and tokens: so does each that comes instead of it."""

    number: int
    nonce: str
    without_tokens: bool = False


_GENERATION = msgspec.json.Decoder(Generation)


def generation_name(number: int) -> str:
    """Returns the object's name of a generation."""
    return f"{GENERATIONS_FOLDER}{number:010d}"


async def create_generation(store: ObjectStore, generation: Generation) -> bool:
    """Creates the object of a generation. False: one of that number exists, which may be this very one. Raises
    StoreUnavailable."""
    return await store.create(generation_name(generation.number), msgspec.json.encode(generation))


async def newest_number(store: ObjectStore) -> int:
    """Returns the number of the newest generation; 0 if there is none. Raises StoreUnavailable."""
    return max(await list_numbers(store), default=0)


async def list_numbers(store: ObjectStore) -> list[int]:
    """Returns the numbers of all generations. Raises StoreUnavailable."""
    found: list[int] = []
    after = ""
    while True:
        names = await store.list(GENERATIONS_FOLDER, after=after, limit=_PAGE)
        digits = [name.removeprefix(GENERATIONS_FOLDER) for name in names]
        found += [int(one) for one in digits if one.isascii() and one.isdecimal()]
        if len(names) < _PAGE:
            return found
        after = names[-1]


async def newest_generation(store: ObjectStore) -> Generation | None:
    """Returns the newest generation. Raises StoreUnavailable, Damaged."""
    number = await newest_number(store)
    return await read_generation(store, number) if number else None


async def check_generation(store: ObjectStore, known: Generation, named: str) -> None:
    """Checks that the store's newest generation is the one that coordination knows. `named` begins the error's text.
    Raises UnfitStore, StoreUnavailable, Damaged."""
    newest = await newest_generation(store)
    if newest and (newest.number, newest.nonce) == (known.number, known.nonce):
        return
    if newest is None:
        raise UnfitStore(
            f"{named}: coordination has generation {known.number}, but the store has no folder _generations/"
        )
    if newest.number < known.number:
        what = (
            f"coordination has generation {known.number}, but the store has only {newest.number}: the store is an "
            "older copy"
        )
    elif newest.number > known.number:
        what = (
            f"the store has generation {newest.number}, but coordination has {known.number}: coordination was "
            "restored to an earlier state, or is not the cluster's present coordination"
        )
    else:
        what = f"coordination and the store have different generations with the number {known.number}"
    raise UnfitStore(f"{named}: {what}; start this broker with the coordination that all brokers use")


async def read_generation(store: ObjectStore, number: int) -> Generation:
    """Returns a generation that the store has. Raises StoreUnavailable, Damaged."""
    name = generation_name(number)
    try:
        found = _GENERATION.decode(await store.read(name))
    except msgspec.DecodeError as error:
        raise Damaged(f"{name} cannot be read: {error}", name=name) from error
    if found.number != number:
        raise Damaged(f"{name} contains the wrong generation number {found.number}", name=name)
    return found


def _ignore(why: str) -> None:
    pass


class Generations:
    """The generation of one life of a broker, and whether it is still the newest. `ended` is called once it is not: the
    life has to end."""

    def __init__(self, store: ObjectStore, ended: Callable[[str], None] = _ignore) -> None:
        self.mine = Generation(FIRST, "")
        self._store = store
        self._ended = ended

    def begin(self, generation: Generation) -> None:
        """Takes the generation that coordination and the store have."""
        self.mine = generation

    async def check(self) -> None:
        """Checks that the store knows no other generation than this life's. Raises Fenced, StoreUnavailable."""
        newest = await newest_number(self._store)
        if newest != self.mine.number:
            why = (
                f"the store has generation {newest} of coordination, but this broker belongs to generation "
                f"{self.mine.number}"
            )
            self.end(why)
            raise Fenced(why)

    def end(self, why: str) -> None:
        """Ends this life, which has seen that coordination is of another history."""
        self._ended(why)
