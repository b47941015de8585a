"""relayd: an OpenAI-compatible gateway that replaces a failing provider before the first byte."""

from __future__ import annotations

__version__ = "0.1.0"
