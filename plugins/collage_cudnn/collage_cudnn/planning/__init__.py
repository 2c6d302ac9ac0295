"""From groups and variants to descriptions. Loads no library."""

__all__: list[str] = []
