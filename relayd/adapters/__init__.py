"""The wire formats of providers behind one interface (`interface.Adapter`).

To add a wire format, add a module with an `ADAPTER` to this package; nothing else changes. A
provider is asked in the first format, by name, that speaks to it. Knows no socket and no clock.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ..config import Price, Provider
from ..record import Usage
from ..surfaces import Surface
from .interface import UNSAID, Adapter, Said, Unsayable
from .openai import ADAPTER as COMMON

__all__ = [
    "ADAPTERS",
    "COMMON",
    "UNSAID",
    "Adapter",
    "Said",
    "Unsayable",
    "adapter_for",
    "cost",
    "found",
]


def found(path: list[str]) -> tuple[Adapter, ...]:
    """The adapters in the modules of this package that lie in the folders of `path`, by name."""
    names = sorted(module.name for module in iter_modules(path))
    modules = [import_module(f".{name}", __name__) for name in names]
    return tuple(module.ADAPTER for module in modules if hasattr(module, "ADAPTER"))


ADAPTERS = found(__path__)


def adapter_for(provider: Provider, adapters: tuple[Adapter, ...] = ADAPTERS) -> Adapter | None:
    """The format in which this provider can chat; None if there is none."""
    return next((adapter for adapter in adapters if adapter.speaks(provider)), None)


def cost(surface: Surface, usage: Usage, price: Price) -> float:
    """USD for one answer on this surface; surfaces without an adapter count as OpenAI's do."""
    speaking = (adapter for adapter in ADAPTERS if adapter.surface is surface)
    return next(speaking, COMMON).cost(usage, price)
