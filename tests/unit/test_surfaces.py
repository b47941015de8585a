"""Names and paths of the relayed surfaces."""

from __future__ import annotations

from relayd.surfaces import STREAMING, Surface


def test_a_surface_is_named_as_in_the_configuration() -> None:
    names = ["chat", "completions", "embeddings", "responses", "messages"]
    assert [surface.value for surface in Surface] == names


def test_a_path_is_appended_to_the_api_root() -> None:
    assert Surface.CHAT.path == "/chat/completions"
    assert all(s.path == f"/{s.value}" for s in Surface if s is not Surface.CHAT)


def test_only_embeddings_never_stream() -> None:
    assert set(Surface) - STREAMING == {Surface.EMBEDDINGS}
