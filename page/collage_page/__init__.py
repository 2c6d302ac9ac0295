"""A placement as a page: what `collage explain --html` writes."""

from collage_page.document import page

__all__ = ["page"]
