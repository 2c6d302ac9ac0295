"""Figures that can be audited: whole runs recorded one by one, and the tables that follow from them."""
